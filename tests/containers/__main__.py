"""The stack, or vLLM with the plugin, in real containers.

`python -m tests.containers [vllm]`, run by `make compose-test` and `make vllm-image`.
"""

import asyncio
import inspect
import os
import sys
import time
from collections.abc import Awaitable, Callable

from tests.containers import compose, pods, vllm


def main() -> int:
    """Runs all checks; returns 0, or 1 after the first that fails."""
    try:
        if sys.argv[1:] == ["vllm"]:
            _check_vllm()
        else:
            _check_stack()
    except AssertionError as error:
        print(f"FAILED: {error}", flush=True)
        return 1
    return 0


def _check_stack() -> None:
    with compose.compose_up() as started:
        print(f"compose: {started}", flush=True)
        for check in (
            compose.check_requests,
            compose.check_redis,
            compose.check_moved_scheduler,
            compose.check_stopped_gateway,
            compose.check_scaled_workers,
            compose.check_requests,
            compose.check_logs,
        ):
            _run(check)
    _run(compose.check_nothing_left)
    _run_pods(pods.check_cpu_overlay)


def _check_vllm() -> None:
    _run(vllm.check_image)
    _run(vllm.check_compose)
    _run_pods(vllm.check_overlay)
    _run_pods(vllm.check_engines_overlay)


def _run_pods(check: Callable[[], str]) -> None:
    if os.environ["ENGINE"] == "podman":
        _run(check)
    else:
        print("pods: skipped, only podman runs pods")


def _run(check: Callable[[], str | Awaitable[str]]) -> None:
    started = time.monotonic()
    result = check()
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    name = f"{check.__module__.rpartition('.')[2]} {check.__name__.removeprefix('check_')}"
    print(f"{name}: {result} ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
