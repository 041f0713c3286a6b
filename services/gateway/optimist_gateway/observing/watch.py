"""What the gateway looks at again and again while it runs."""

import asyncio
import time

from optimist_gateway.observing.metrics import GatewayMetrics

DELAY_INTERVAL_SECONDS = 0.5


async def watch_event_loop(metrics: GatewayMetrics) -> None:
    """Notes how late the event loop comes to a timer, and its tasks; returns never."""
    while True:
        due = time.perf_counter() + DELAY_INTERVAL_SECONDS
        await asyncio.sleep(DELAY_INTERVAL_SECONDS)
        metrics.event_loop_delay.observe(max(time.perf_counter() - due, 0.0))
        metrics.tasks.set(len(asyncio.all_tasks()))
