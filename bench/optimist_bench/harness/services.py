"""Services that a benchmark starts: all or some, with further flags; their figures."""

import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from anyio.from_thread import start_blocking_portal

from optimist_cli.serve.command import write_prefixed
from optimist_cli.serve.process import ServiceSpec
from optimist_cli.serve.service_specs import service_specs
from optimist_cli.serve.settings import ServeSettings
from optimist_cli.serve.supervisor import Supervisor


@contextmanager
def running(specs: Sequence[ServiceSpec]) -> Iterator[None]:
    """Starts services and returns when all are healthy; ends them afterwards.

    Schedulers have no prefix cache: rounds with the same prompts are to cost the same.

    Raises:
        SetupError: A service could not start.
    """
    flags = ("--no-enable-prefix-caching",)
    supervisor = Supervisor(
        [
            replace(spec, arguments=[*spec.arguments, *flags]) if spec.name == "scheduler" else spec
            for spec in specs
        ],
        write_prefixed,
    )
    with start_blocking_portal() as portal:
        try:
            portal.call(supervisor.start)
            yield
        finally:
            portal.call(supervisor.stop)


def stack_specs(
    settings: ServeSettings,
    flags: Mapping[str, Sequence[str]],
    without: Collection[str] = (),
) -> list[ServiceSpec]:
    """Returns how to start the services.

    Args:
        settings: Of `optimist serve`.
        flags: More flags by service; they prevail.
        without: Services to leave out; whoever would call them must know that by `flags`.
    """
    return [
        replace(spec, arguments=[*spec.arguments, *flags.get(spec.name, ())])
        for spec in service_specs(settings)
        if spec.name not in without
    ]


def address_of(specs: Sequence[ServiceSpec], name: str) -> str:
    """Returns host:port of a service; raises LookupError if it is not there."""
    for spec in specs:
        if spec.name == name:
            host, port = (
                spec.arguments[spec.arguments.index(flag) + 1] for flag in ("--host", "--port")
            )
            return f"{host}:{port}"
    raise LookupError(f"there is no {name}")


def read_metrics(port: int) -> dict[str, float]:
    """Returns the metrics of a service on this machine, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}
