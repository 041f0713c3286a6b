"""The services of `optimist serve` with further flags, all or only some of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from optimist_cli.serve.process import ServiceSpec
from optimist_cli.serve.service_specs import service_specs
from optimist_cli.serve.settings import ServeSettings


def stack_specs(
    settings: ServeSettings,
    flags: Mapping[str, Sequence[str]],
    without: Collection[str] = (),
) -> list[ServiceSpec]:
    """Returns how to start the services.

    Args:
        settings: Of `optimist serve`.
        flags: More flags by service; they prevail.
        without: Services to leave out; who would call them must be told by `flags`.
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
