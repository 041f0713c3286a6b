"""`optimist serve MODEL`: proposer, worker, scheduler and gateway as processes on this machine."""

import asyncio
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self, TextIO

from pydantic import Field, model_validator

from optimist_cli.ports import free_ports
from optimist_cli.process import ServiceSpec
from optimist_cli.supervisor import Supervisor
from optimist_common.address import join_address
from optimist_common.health import is_serving
from optimist_common.network_settings import Host
from optimist_common.server import require_free
from optimist_common.settings import ServiceSettings, config_file, configured, load_settings

COLOURS = {"proposer": 35, "worker": 33, "scheduler": 36, "gateway": 32}
_OF_THE_WORKER = (
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "drafter",
    "drafter_model",
)
_WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServeSettings(ServiceSettings):
    """Starts all services with one model: optimist serve MODEL [OPTIONS].

    Every option of a single service can be set too, by its variable (OPTIMIST_WORKER_DTYPE) or in
    the file that --config names. What is set here prevails.
    """

    section: ClassVar[str] = "serve"

    model: str = Field(description="model directory or hub name; also the first argument")
    host: Host = Field("127.0.0.1", description="address that the REST API listens on")
    port: int = Field(8000, ge=1, le=65535, description="port that the REST API listens on")
    grpc_port: int = Field(
        0, ge=0, le=65535, description="port that the gRPC API listens on; 0 for none"
    )
    served_model_name: str = Field(
        "", description="name in the API; empty for the last part of MODEL"
    )
    proposers: int = Field(
        0, ge=0, le=16, description="how many proposers; 0: one for each 8 cores, at most 4"
    )
    workers: int = Field(
        1, ge=1, le=16, description="how many workers; with --device cuda each on its own GPU"
    )
    store: str = Field(
        "", description="where proposers keep cursors: memory, as by default, or redis://..."
    )
    device: str = Field("", description="device of the worker, such as cpu or cuda")
    dtype: str = Field("", description="number format of the worker, such as float32")
    tensor_parallel_size: str = Field(
        "", description="processes of the worker that share each layer, such as 2"
    )
    pipeline_parallel_size: str = Field(
        "", description="processes of the worker that its layers are divided among, such as 2"
    )
    drafter: str = Field(
        "",
        description="what drafts where nothing is predicted: none, ngram, draft_model, quantised, "
        "medusa or eagle",
    )
    drafter_model: str = Field("", description="draft model or heads; empty for those beside MODEL")
    otlp_endpoint: str = Field(
        "",
        description="where spans go by OTLP/gRPC, such as http://127.0.0.1:4317; empty: nowhere",
    )
    log_level: str = Field("warning", description="debug, info, warning or error")

    @model_validator(mode="after")
    def _has_a_device_per_worker(self) -> Self:
        sizes = (self.tensor_parallel_size, self.pipeline_parallel_size)
        if (
            self.workers > 1
            and self.device == "cuda"
            and any(size not in ("", "1") for size in sizes)
        ):
            raise ValueError(
                "--workers: must be 1 where a worker has several GPUs; start such workers one by "
                "one, each with its own CUDA_VISIBLE_DEVICES"
            )
        return self


def main(arguments: list[str]) -> int:
    """Runs `optimist serve`; returns the exit code."""
    settings = serve_settings(arguments)
    return asyncio.run(serve(settings, config_file(arguments)))


def serve_settings(arguments: list[str]) -> ServeSettings:
    """Reads the settings; a first word that is no flag is the model."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]
    return load_settings(ServeSettings, arguments)


async def serve(settings: ServeSettings, config: str | None) -> int:
    """Keeps the services running until Ctrl-C or SIGTERM; returns the exit code.

    Args:
        settings: What to start.
        config: YAML file with settings of the services; None for none.
    """
    require_free(settings.host, settings.port)
    if settings.grpc_port:
        require_free(settings.host, settings.grpc_port, "--grpc-port")
    supervisor = Supervisor(service_specs(settings, config), write_prefixed)
    main_task = asyncio.create_task(_start_and_watch(supervisor, settings, config))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main_task.cancel)
    try:
        await main_task
    except asyncio.CancelledError:
        _say("stopping", sys.stderr)
    finally:
        await supervisor.stop()
    return 0


async def _start_and_watch(
    supervisor: Supervisor, settings: ServeSettings, config: str | None
) -> None:
    _say(f"starting proposers, worker, scheduler and gateway with {settings.model}")
    await supervisor.start()
    url = _url(settings)
    _say(
        f"\nOptimist serves {model_name(settings, config)} at {url}\n"
        f"  API      {url}/v1   (chat/completions, completions, responses, models)\n"
        f"{_grpc_line(settings, config)}"
        f"  schema   {url}/openapi.json\n"
        f"  metrics  {url}/metrics\n"
        f"  try it   {_command()} complete 'Rename `a` to `b`.' --file FILE --url {url}\n"
        "  stop     Ctrl-C\n"
    )
    await supervisor.watch()


def _grpc_line(settings: ServeSettings, config: str | None) -> str:
    port = _effective(settings, "grpc_port", "gateway", config)
    return f"  gRPC     {join_address(settings.host, port)}\n" if port not in ("", "0") else ""


def _say(text: str, stream: TextIO | None = None) -> None:
    """Writes to standard output or another stream; the services go on if nobody reads that."""
    with suppress(OSError):
        print(text, file=stream, flush=True)


def _url(settings: ServeSettings) -> str:
    return f"http://{join_address(settings.host, settings.port)}"


def _command() -> str:
    """Returns what to type for `optimist` where this process was started."""
    return sys.argv[0] if Path(sys.argv[0]).name == "optimist" else "optimist"


def model_name(settings: ServeSettings, config: str | None = None) -> str:
    """Returns the name by which requests ask for the model."""
    name = _effective(settings, "served_model_name", "gateway", config)
    return name or settings.model.rstrip("/").rsplit("/", 1)[-1]


def service_specs(settings: ServeSettings, config: str | None = None) -> list[ServiceSpec]:
    """Returns how to start each service, in starting order, on free ports of the loopback.

    Args:
        settings: What to start.
        config: YAML file with settings of the services; None for what OPTIMIST_CONFIG names.
    """
    config = config or config_file([])
    num_proposers = settings.proposers or min(max((os.cpu_count() or 1) // 8, 1), 4)
    ports = free_ports(1 + settings.workers + num_proposers)
    scheduler, *others = (f"127.0.0.1:{port}" for port in ports)
    workers, proposers = others[: settings.workers], others[settings.workers :]
    url = f"{_url(settings)}/health"
    return [
        *(
            ServiceSpec(
                "proposer",
                [
                    *_listen(each),
                    *("--model", settings.model),
                    *_given(settings, "store"),
                    *_common(settings, "proposer", config),
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
                    *_device(settings, number),
                    *_given(settings, *_OF_THE_WORKER),
                    *_common(settings, "worker", config),
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
            ],
            _serving(scheduler),
        ),
        ServiceSpec(
            "gateway",
            [
                *("--host", settings.host, "--port", str(settings.port)),
                *("--model", settings.model, "--schedulers", scheduler),
                *_given(settings, "served_model_name", "grpc_port"),
                *_common(settings, "gateway", config),
            ],
            lambda: _answers(url),
        ),
    ]


def write_prefixed(name: str, line: str) -> None:
    """Writes one log line of a service, prefixed by its name, in colour on a terminal."""
    prefix = f"{name:<9} |"
    if sys.stderr.isatty():
        prefix = f"\x1b[{COLOURS[name]}m{prefix}\x1b[0m"
    print(prefix, line, file=sys.stderr, flush=True)


def _given(settings: ServeSettings, *names: str) -> list[str]:
    """Returns the flags of those options that were set; of the others a service has its own."""
    words: list[str] = []
    for name in names:
        value = str(getattr(settings, name))
        if name in settings.model_fields_set and value:
            words += ["--" + name.replace("_", "-"), value]
    return words


def _common(settings: ServeSettings, service: str, config: str | None) -> list[str]:
    """Returns the flags that every service has."""
    words = _given(settings, "log_level", "otlp_endpoint")
    if not _effective(settings, "log_level", service, config):
        words += ["--log-level", settings.log_level]
    if config:
        words += ["--config", str(Path(config).absolute())]
    return words


def _effective(settings: ServeSettings, name: str, service: str, config: str | None) -> str:
    """Returns what a service goes by: what was set here, or else for itself; empty if neither."""
    if name in settings.model_fields_set:
        return str(getattr(settings, name))
    value = configured(service, name, config)
    return "" if value is None else str(value)


def _device(settings: ServeSettings, number: int) -> list[str]:
    """Returns how a worker is told its device: of several, each has a GPU of its own."""
    if not settings.device:
        return []
    is_shared = settings.workers > 1 and settings.device == "cuda"
    return ["--device", f"cuda:{number}" if is_shared else settings.device]


def _listen(address: str) -> list[str]:
    host, port = address.rsplit(":", 1)
    return ["--host", host, "--port", port]


def _serving(address: str) -> Callable[[], bool]:
    return lambda: is_serving(address, timeout=1.0)


def _answers(url: str) -> bool:
    try:
        with _WITHOUT_PROXY.open(url, timeout=1.0) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
