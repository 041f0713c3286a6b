"""Options of `optimist serve`, and how its services get theirs."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from optimist_common.network.settings import Host
from optimist_common.settings import ServiceSettings, configured, load_settings

OF_OUR_ENGINE = (
    "proposers",
    "workers",
    "store",
    "device",
    "dtype",
    "quantization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "drafter",
    "drafter_model",
)
"""Settings that another engine has in flags of its own, if at all."""


class ServeSettings(ServiceSettings):
    """Starts all services with one model: optimist serve MODEL [OPTIONS] [-- FLAGS of vLLM].

    Every option of a single service can be set too, by its variable (OPTIMIST_WORKER_DTYPE) or in
    the file that --config names. What is set here prevails.
    """

    section: ClassVar[str] = "serve"

    model: str = Field(
        description="model directory, hub name or GGUF file, which is converted once and kept in "
        "OPTIMIST_HOME, or ~/.optimist; also the first argument"
    )
    host: Host = Field("127.0.0.1", description="address that the REST API listens on")
    port: int = Field(8000, ge=1, le=65535, description="port that the REST API listens on")
    grpc_port: int = Field(
        0, ge=0, le=65535, description="port that the gRPC API listens on; 0 for none"
    )
    served_model_name: str = Field(
        "", description="name in the API; empty for the last part of MODEL"
    )
    engine: Literal["optimist", "vllm"] = Field(
        "optimist",
        description="what runs the model: optimist (a scheduler, workers and proposers) or vllm, "
        "whose flags come after --",
    )
    engine_python: str = Field(
        "", description="Python of the environment that vLLM is in; empty: the one that runs this"
    )
    proposers: int = Field(
        0, ge=0, le=16, description="how many proposers; 0: one for each 8 cores, at most 4"
    )
    workers: int = Field(
        1, ge=1, le=16, description="how many workers; where there are GPUs, each on its own"
    )
    store: str = Field(
        "", description="where proposers keep cursors: memory, as by default, or redis://..."
    )
    device: str = Field(
        "", description="device of the worker, such as cpu or cuda; auto: a GPU if there is one"
    )
    dtype: str = Field(
        "",
        description="number format of the worker, such as float32; auto: on a GPU the model's own, "
        "on the CPU float32, or bfloat16 where that is exact and the model's own",
    )
    quantization: str = Field(
        "", description="format that the worker rounds weights to on a CPU: none, int8 or int4"
    )
    tensor_parallel_size: str = Field(
        "", description="processes of the worker that share each layer, such as 2"
    )
    pipeline_parallel_size: str = Field(
        "", description="processes of the worker that its layers are divided among, such as 2"
    )
    drafter: str = Field(
        "",
        description="what drafts where no window does: none, ngram, draft_model, quantised, "
        "medusa or eagle; empty: the worker's setting",
    )
    drafter_model: str = Field("", description="draft model or heads; empty for those beside MODEL")
    otlp_endpoint: str = Field(
        "",
        description="where spans go by OTLP/gRPC, such as http://127.0.0.1:4317; empty: nowhere",
    )
    end_with_stdin: bool = Field(
        False,
        description="whether to end when standard input, a pipe, is closed, as it is when the "
        "program that started this ends: true or false",
    )
    log_level: str = Field("warning", description="debug, info, warning or error")

    @model_validator(mode="after")
    def _has_what_its_engine_knows(self) -> Self:
        if self.engine == "vllm":
            for name in OF_OUR_ENGINE:
                if name in self.model_fields_set:
                    flag = "--" + name.replace("_", "-")
                    raise ValueError(
                        f"{flag}: is of --engine optimist; give vLLM's own flags after --"
                    )
        elif self.engine_python:
            raise ValueError("--engine-python: is of --engine vllm")
        return self

    @model_validator(mode="after")
    def _has_a_device_per_worker(self) -> Self:
        sizes = (self.tensor_parallel_size, self.pipeline_parallel_size)
        if (
            self.workers > 1
            and self.device != "cpu"
            and any(size not in ("", "1") for size in sizes)
        ):
            raise ValueError(
                "--workers: must be 1 where a worker has several devices, unless --device is cpu; "
                "start such workers one by one, each with its own CUDA_VISIBLE_DEVICES"
            )
        return self


def serve_settings(arguments: list[str]) -> ServeSettings:
    """Reads the settings; a first word that is no flag is the model."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]
    return load_settings(ServeSettings, arguments)


def effective(settings: ServeSettings, name: str, service: str, config: str | None) -> str:
    """Returns what a service goes by: what was set here, or else for itself; empty if neither."""
    if name in settings.model_fields_set:
        return str(getattr(settings, name))
    value = configured(service, name, config)
    return "" if value is None else str(value)
