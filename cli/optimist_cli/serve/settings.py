"""Options of `optimist serve`, and how its services get theirs."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from optimist_common.errors import SetupError
from optimist_common.network.settings import Host
from optimist_common.settings import (
    ServiceSettings,
    add_options,
    build_settings,
    config_file,
    configured,
    flag_of,
    option_parser,
    parse_flags,
)

OF_OUR_ENGINE = (
    "proposers",
    "workers",
    "device",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)
"""Settings that another engine has in flags of its own, if at all."""

_CLASSES = {
    "gateway": ("optimist_gateway.settings", "GatewaySettings"),
    "scheduler": ("optimist_scheduler.settings", "SchedulerSettings"),
    "worker": ("optimist_worker.settings", "WorkerSettings"),
    "proposer": ("optimist_proposer.settings", "ProposerSettings"),
}
_NOT_PASSED_ON = frozenset(
    {"schedulers", "models", "api_keys", "metrics_port", "tls_cert", "tls_key", "tls_ca"}
)
"""What this command decides, or what is for services on several machines."""
_OF_THE_GATEWAY = frozenset({"insecure"})
"""What others have too, but do not need on the loopback."""

ServiceFlags = Mapping[str, Sequence[str]]
"""Flags that go to single services, by service."""


class ServeSettings(ServiceSettings):
    """Starts all services with one model: optimist serve MODEL [OPTIONS] [-- FLAGS of vLLM].

    Options of single services are passed on to them. Variables (OPTIMIST_WORKER_DTYPE) and the
    file that --config names set them too; what is set here prevails.
    """

    section: ClassVar[str] = "serve"
    arguments: ClassVar[tuple[str, ...]] = ("model",)

    model: str = Field(
        description="model directory, hub name or GGUF file, which is converted once and kept in "
        "OPTIMIST_HOME, or ~/.optimist"
    )
    host: Host = Field("127.0.0.1", description="address that the REST API listens on")
    port: int = Field(8000, ge=1, le=65535, description="port that the REST API listens on")
    grpc_port: int = Field(
        0, ge=0, le=65535, description="port that the gRPC API listens on; 0 for none"
    )
    served_model_name: str = Field(
        "", description="name in the API; empty for the last part of MODEL"
    )
    api_key: str = Field(
        "",
        description="key that clients must send; better as OPTIMIST_SERVE_API_KEY, as flags are "
        "seen by all users of a machine",
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
    device: str = Field(
        "", description="device of the worker, such as cpu or cuda; auto: a GPU if there is one"
    )
    tensor_parallel_size: str = Field(
        "", description="processes of the worker that share each layer, such as 2"
    )
    pipeline_parallel_size: str = Field(
        "", description="processes of the worker that its layers are divided among, such as 2"
    )
    otlp_endpoint: str = Field(
        "",
        description="where spans go by OTLP/gRPC, such as http://127.0.0.1:4317; empty: nowhere",
    )
    end_with_stdin: bool = Field(
        False,
        description="end when standard input, a pipe, is closed, as it is when the program that "
        "started this ends",
    )
    log_level: str = Field(
        "warning",
        description="debug, info, warning or error; without it, a worker's is info: it reports the "
        "steps of its start",
    )

    @model_validator(mode="after")
    def _has_what_its_engine_knows(self) -> Self:
        if self.engine == "vllm":
            for name in OF_OUR_ENGINE:
                if name in self.model_fields_set:
                    raise ValueError(
                        f"{flag_of(name)}: is of --engine optimist; give vLLM's own flags after --"
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


def serve_settings(arguments: list[str]) -> tuple[ServeSettings, ServiceFlags]:
    """Reads the command line: what this command goes by, and what it passes on to services."""
    parser, passed = option_parser(ServeSettings), _passed_on()
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, services in passed.items():
        first = next(iter(services))
        group = groups.get(first) or parser.add_argument_group(f"options of the {first}")
        groups[first] = group
        add_options(parser, group, services[first], [name])
    flags = parse_flags(parser, ServeSettings, arguments)
    own = {name: value for name, value in flags.items() if name not in passed}
    settings = build_settings(ServeSettings, own, config_file(arguments))
    words: dict[str, list[str]] = {}
    for name in (name for name in passed if name in flags):
        for service in passed[name]:
            words.setdefault(service, []).append(flag_of(name, flags[name]))
        if settings.engine == "vllm" and "gateway" not in passed[name]:
            raise SetupError(
                f"{flag_of(name)}: is of --engine optimist; give vLLM's own flags after --"
            )
    return settings, words


def _passed_on() -> dict[str, dict[str, type[ServiceSettings]]]:
    """Returns the options of single services that are installed: by name, services with it."""
    passed: dict[str, dict[str, type[ServiceSettings]]] = {}
    for service, (module, class_name) in _CLASSES.items():
        with suppress(ModuleNotFoundError):
            settings_class = getattr(import_module(module), class_name)
            others = ServeSettings.model_fields.keys() | _NOT_PASSED_ON
            if service != "gateway":
                others |= _OF_THE_GATEWAY
            for name in settings_class.model_fields:
                if name not in others:
                    passed.setdefault(name, {})[service] = settings_class
    return passed


def effective(settings: ServeSettings, name: str, service: str, config: str | None) -> str:
    """Returns what a service goes by: what was set here, or else for itself; empty if neither."""
    if name in settings.model_fields_set:
        return str(getattr(settings, name))
    value = configured(service, name, config)
    return "" if value is None else str(value)
