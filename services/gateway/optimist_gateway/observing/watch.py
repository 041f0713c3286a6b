"""What the gateway looks at again and again while it runs."""

import asyncio
import time

from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.scheduler.client import SchedulerClient

DELAY_INTERVAL_SECONDS = 0.5
STATS_INTERVAL_SECONDS = 1.0


async def watch_event_loop(metrics: GatewayMetrics) -> None:
    """Notes how late the event loop comes to a timer, and its tasks; returns never."""
    while True:
        due = time.perf_counter() + DELAY_INTERVAL_SECONDS
        await asyncio.sleep(DELAY_INTERVAL_SECONDS)
        metrics.event_loop_delay.observe(max(time.perf_counter() - due, 0.0))
        metrics.tasks.set(len(asyncio.all_tasks()))


async def watch_scheduler(client: SchedulerClient) -> None:
    """Asks for the scheduler's figures; returns never."""
    while True:
        client.ask_stats()
        await asyncio.sleep(STATS_INTERVAL_SECONDS)
