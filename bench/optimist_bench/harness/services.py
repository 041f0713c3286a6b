"""Starts all services for a benchmark that was not pointed at running ones."""

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from optimist_cli.serve.command import write_prefixed
from optimist_cli.serve.process import ServiceSpec
from optimist_cli.serve.service_specs import service_specs
from optimist_cli.serve.settings import ServeSettings
from optimist_cli.serve.supervisor import Supervisor


@contextmanager
def running_services(settings: ServeSettings) -> Iterator[str]:
    """Starts the services and yields the gateway's URL; ends them afterwards.

    Raises:
        SetupError: A service could not start.
    """
    print(f"starting the services with {settings.model}", file=sys.stderr)
    with running(service_specs(settings)):
        yield f"http://{settings.host}:{settings.port}"


@contextmanager
def running(specs: Sequence[ServiceSpec]) -> Iterator[None]:
    """Starts services and returns when all are healthy; ends them afterwards.

    Raises:
        SetupError: A service could not start.
    """
    supervisor = Supervisor(specs, write_prefixed)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(supervisor.start(), loop).result()
        yield
    finally:
        asyncio.run_coroutine_threadsafe(supervisor.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
