"""How `optimist serve` starts each service, and how it knows that one is healthy."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from optimist_cli.serve.ports import free_ports
from optimist_cli.serve.process import ServiceSpec
from optimist_cli.serve.settings import ServeSettings, ServiceFlags, effective
from optimist_common.network.endpoints import join_address
from optimist_common.network.health import is_serving
from optimist_common.network.http_health import answers
from optimist_common.settings import config_file, flag_of

NO_FLAGS: ServiceFlags = {}
_VLLM_START_SECONDS = 1800.0
"""It loads, compiles and captures graphs of large models."""


def service_specs(
    settings: ServeSettings,
    config: str | None = None,
    flags: ServiceFlags = NO_FLAGS,
) -> list[ServiceSpec]:
    """Returns how to start each service, in starting order, on free ports of the loopback.

    Args:
        settings: What to start.
        config: YAML file with settings of the services; None for what OPTIMIST_CONFIG names.
        flags: Flags of single services; of `engine`, those of vLLM.
    """
    config = config or config_file([])
    if settings.engine == "vllm":
        engine, address = _vllm_spec(settings, config, flags)
        return [engine, _gateway_spec(settings, config, flags, address)]
    num_proposers = settings.proposers or min(max((os.cpu_count() or 1) // 8, 1), 4)
    ports = _ports(settings, config, 1 + settings.workers + num_proposers)
    scheduler, *others = (f"127.0.0.1:{port}" for port in ports)
    workers, proposers = others[: settings.workers], others[settings.workers :]
    return [
        *(
            ServiceSpec(
                "proposer",
                [
                    *_listen(each),
                    *("--model", settings.model),
                    *_common(settings, "proposer", config),
                    *flags.get("proposer", ()),
                ],
                _serving(each),
            )
            for each in proposers
        ),
        *(
            ServiceSpec(
                "worker",
                [
                    *_listen(each),
                    *("--model", settings.model),
                    *_device(settings, number, config),
                    *_given(settings, "tensor_parallel_size", "pipeline_parallel_size"),
                    *_common(settings, "worker", config),
                    *flags.get("worker", ()),
                ],
                _serving(each),
            )
            for number, each in enumerate(workers)
        ),
        ServiceSpec(
            "scheduler",
            [
                *_listen(scheduler),
                *("--workers", ",".join(workers), "--proposers", ",".join(proposers)),
                *_common(settings, "scheduler", config),
                *flags.get("scheduler", ()),
            ],
            _serving(scheduler),
        ),
        _gateway_spec(settings, config, flags, scheduler),
    ]


def _ports(settings: ServeSettings, config: str | None, number: int) -> list[int]:
    """Returns free ports, none of which the gateway is about to take."""
    grpc_port = effective(settings, "grpc_port", "gateway", config)
    return free_ports(number, (str(settings.port), grpc_port))


def _vllm_spec(
    settings: ServeSettings, config: str | None, flags: ServiceFlags
) -> tuple[ServiceSpec, str]:
    """Returns how to start vLLM, and its address."""
    address = f"127.0.0.1:{_ports(settings, config, 1)[0]}"
    spec = ServiceSpec(
        "engine",
        [
            *_listen(address),
            *("--model", settings.model),
            *_common(settings, "engine", config),
            *("--", *flags.get("engine", ())),
        ],
        _serving(address),
        module="optimist_vllm.engine",
        python=settings.engine_python or sys.executable,
        start_seconds=_VLLM_START_SECONDS,
    )
    return spec, address


def _gateway_spec(
    settings: ServeSettings, config: str | None, flags: ServiceFlags, scheduler: str
) -> ServiceSpec:
    url = f"{gateway_url(settings, config)}/health"
    return ServiceSpec(
        "gateway",
        [
            *("--host", settings.host, "--port", str(settings.port)),
            *("--model", settings.model, "--schedulers", scheduler),
            *_given(settings, "served_model_name", "grpc_port"),
            *_common(settings, "gateway", config),
            *flags.get("gateway", ()),
        ],
        lambda: answers(url, timeout=1.0),
        variables={"OPTIMIST_GATEWAY_API_KEYS": settings.api_key} if settings.api_key else {},
    )


def model_name(settings: ServeSettings, config: str | None = None) -> str:
    """Returns the name by which requests ask for the model."""
    name = effective(settings, "served_model_name", "gateway", config)
    return name or settings.model.rstrip("/").rsplit("/", 1)[-1]


def gateway_url(settings: ServeSettings, config: str | None = None) -> str:
    """Returns where the gateway answers."""
    scheme = "https" if effective(settings, "https_cert", "gateway", config) else "http"
    return f"{scheme}://{join_address(settings.host, settings.port)}"


def _given(settings: ServeSettings, *names: str) -> list[str]:
    """Returns the flags of those options that were set; of the others a service has its own."""
    words: list[str] = []
    for name in names:
        value = str(getattr(settings, name))
        if name in settings.model_fields_set and value:
            words += [flag_of(name), value]
    return words


def _common(settings: ServeSettings, service: str, config: str | None) -> list[str]:
    """Returns the flags that every service has."""
    words = _given(settings, "log_level", "otlp_endpoint")
    if not effective(settings, "log_level", service, config):
        # What it does before it serves may take minutes; afterwards it says little.
        words += ["--log-level", "info" if service == "worker" else settings.log_level]
    if config:
        words += ["--config", str(Path(config).absolute())]
    return words


def _device(settings: ServeSettings, number: int, config: str | None) -> list[str]:
    """Returns the flag of a worker's device: of several workers, each has a GPU of its own."""
    device = effective(settings, "device", "worker", config) or "auto"
    if settings.workers > 1 and device in ("auto", "cuda"):
        return ["--device", f"{device}:{number}"]
    return _given(settings, "device")


def _listen(address: str) -> list[str]:
    host, port = address.rsplit(":", 1)
    return ["--host", host, "--port", port]


def _serving(address: str) -> Callable[[], bool]:
    return lambda: is_serving(address, timeout=1.0)
