"""`python -m tests.containers`, run by `make compose-test`: the stack in real containers."""

import asyncio
import inspect
import os
import sys
import time
from collections.abc import Awaitable, Callable

from tests.containers import compose, pods


def main() -> int:
    """Runs all checks; returns 0, or 1 after the first that fails."""
    try:
        with compose.compose_up() as started:
            print(f"compose: {started}", flush=True)
            for check in (
                compose.check_requests,
                compose.check_redis,
                compose.check_moved_scheduler,
                compose.check_scaled_workers,
                compose.check_requests,
                compose.check_logs,
            ):
                _run(check)
        _run(compose.check_nothing_left)
        if os.environ["ENGINE"] != "podman":
            print("pods: skipped, only podman runs pods")
            return 0
        _run(pods.check_cpu_overlay)
    except AssertionError as error:
        print(f"FAILED: {error}", flush=True)
        return 1
    return 0


def _run(check: Callable[[], str | Awaitable[str]]) -> None:
    started = time.monotonic()
    result = check()
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    name = f"{check.__module__.rpartition('.')[2]} {check.__name__.removeprefix('check_')}"
    print(f"{name}: {result} ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
