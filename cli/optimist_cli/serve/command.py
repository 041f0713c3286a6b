"""`optimist serve MODEL`: proposer, worker, scheduler and gateway as processes on this machine."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from pydantic import TypeAdapter

from optimist_cli.serve.model_directory import find_directory
from optimist_cli.serve.service_specs import gateway_url, model_name, service_specs
from optimist_cli.serve.settings import ServeSettings, ServiceFlags, effective, serve_settings
from optimist_cli.serve.supervisor import Supervisor
from optimist_common.errors import SetupError
from optimist_common.network.endpoints import join_address
from optimist_common.network.server import require_free
from optimist_common.settings import config_file, split_flags

# A package that each service needs and that comes with its extra.
PACKAGES = {
    "gateway": "fastapi",
    "scheduler": "optimist_aligner",
    "worker": "torch",
    "proposer": "redis",
}
COLOURS = {"proposer": 35, "worker": 33, "scheduler": 36, "engine": 36, "gateway": 32}
COMPLETE_URL = "http://127.0.0.1:8000"
"""Where `optimist complete` asks unless it has a `--url`."""
TRY_LANGUAGE = (
    "echo 'We will recieve the parcel on Monday and send it on the next day.'",
    "'Correct the spelling of this text:'",
)
TRY_TINY_EDIT = (
    "printf 'def area(width, height):\\n    return width * height\\n'",
    "'Rename `width` to `length`.'",
)
"""What prints a text, and what to do with it; the bundled model only edits code."""


def main(arguments: list[str]) -> int:
    """Runs `optimist serve`; returns the exit code."""
    arguments, engine_flags = split_flags(arguments)
    settings, flags = serve_settings(arguments)
    if engine_flags and settings.engine != "vllm":
        raise SetupError(f"{engine_flags[0]}: what comes after -- is for --engine vllm")
    _require_services(["gateway"] if settings.engine == "vllm" else list(PACKAGES))
    flags = {**flags, "engine": engine_flags}
    return asyncio.run(serve(settings, config_file(arguments), flags))


def _require_services(services: Sequence[str]) -> None:
    missing = [service for service in services if find_spec(PACKAGES[service]) is None]
    if missing:
        raise SetupError(
            f"not installed: {', '.join(missing)}; install them with: "
            f"pip install 'optimist[{','.join(missing)}]'"
        )


async def serve(settings: ServeSettings, config: str | None, flags: ServiceFlags) -> int:
    """Keeps the services running until Ctrl-C or SIGTERM; returns the exit code.

    Args:
        settings: What to start.
        config: YAML file with settings of the services; None for none.
        flags: Flags of single services; of `engine`, those of vLLM.
    """
    require_free(settings.host, settings.port)
    if settings.grpc_port:
        require_free(settings.host, settings.grpc_port, "--grpc-port")
    started = AsyncExitStack()
    main_task = asyncio.create_task(_start_and_watch(settings, config, flags, started))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main_task.cancel)
    if settings.end_with_stdin:
        _at_end_of_stdin(loop, main_task.cancel)
    try:
        await main_task
    except asyncio.CancelledError:
        _say("stopping", sys.stderr)
    finally:
        await started.aclose()
    return 0


def _at_end_of_stdin(loop: asyncio.AbstractEventLoop, end: Callable[[], object]) -> None:
    """Calls a function when standard input is closed; what is written to it is dropped."""

    def read() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            end()

    try:
        descriptor = sys.stdin.fileno()
        loop.add_reader(descriptor, read)
    except (AttributeError, OSError):
        raise SetupError("--end-with-stdin: standard input must be a pipe") from None


async def _start_and_watch(
    settings: ServeSettings,
    config: str | None,
    flags: ServiceFlags,
    started: AsyncExitStack,
) -> None:
    begin = time.monotonic()
    directory = await find_directory(settings.model, _say)
    settings = settings.model_copy(update={"model": directory})
    specs = service_specs(settings, config, flags)
    supervisor = Supervisor(specs, write_prefixed)
    started.push_async_callback(supervisor.stop)
    names = " and ".join(dict.fromkeys(spec.name for spec in specs))
    _say(f"starting {names.replace(' and ', ', ', names.count(' and ') - 1)} with {settings.model}")
    await supervisor.start()
    _say(summary(settings, config, flags, time.monotonic() - begin))
    await supervisor.watch()


def summary(
    settings: ServeSettings, config: str | None, flags: ServiceFlags, seconds: float
) -> str:
    """Returns where the services are, after how long, and a request to paste for the model."""
    url = gateway_url(settings, config)
    grpc_port = effective(settings, "grpc_port", "gateway", config)
    page = TypeAdapter(bool).validate_python(effective(settings, "page", "gateway", config) or True)
    has_page = page and "--no-page" not in flags.get("gateway", ())
    is_bundled = Path(settings.model).name == "tiny-edit"
    text, instruction = TRY_TINY_EDIT if is_bundled else TRY_LANGUAGE
    example = f"{text} | {_command()} complete {instruction} --file /dev/stdin"
    if url != COMPLETE_URL:
        example += f" --url {url}"
    if settings.api_key:
        example += " --api-key KEY"
    places = {
        "page": f"{url}/" if has_page else "",
        "API": f"{url}/v1",
        "gRPC": join_address(settings.host, grpc_port) if grpc_port not in ("", "0") else "",
        "metrics": f"{url}/metrics",
        "stop": "Ctrl-C",
        "try it": example,
    }
    lines = [f"  {what:<8} {where}\n" for what, where in places.items() if where]
    name = model_name(settings, config)
    return f"\nOptimist serves {name}, ready after {seconds:.1f} s\n{''.join(lines)}"


def _say(text: str, stream: TextIO | None = None) -> None:
    """Writes to standard output or another stream; the services go on if nobody reads that."""
    with suppress(OSError):
        print(text, file=stream, flush=True)


def _command() -> str:
    """Returns what to type for `optimist` where this process was started."""
    return sys.argv[0] if Path(sys.argv[0]).name == "optimist" else "optimist"


def write_prefixed(name: str, line: str) -> None:
    """Writes one log line of a service, prefixed by its name, in colour on a terminal."""
    prefix = f"{name:<9} |"
    if sys.stderr.isatty():
        prefix = f"\x1b[{COLOURS[name]}m{prefix}\x1b[0m"
    print(prefix, line, file=sys.stderr, flush=True)
