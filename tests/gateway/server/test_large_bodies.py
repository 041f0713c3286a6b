"""While the gateway reads one large body, of whatever shape, it answers others."""

import asyncio
from pathlib import Path

import httpx

from tests.gateway.fake_scheduler import FakeScheduler, Script, Step
from tests.gateway.server.large_bodies import SHAPES
from tests.gateway.server.process import gateway

NUM_BYTES = 1_100_000
# Each of them would keep the event loop for half a second and more, were it parsed.
TOO_MANY = {"lists", "objects", "keys", "unknown field", "calls", "a tool", "biases", "stop tokens"}
TOO_MANY |= {"predictions of tokens", "metadata", "items", "annotations", "tools", "parts", "stop"}
JSON = {"content-type": "application/json"}
DELAYS, SECOND = "optimist_gateway_event_loop_delay_seconds", '_bucket{le="1.0"}'


async def probe(http: httpx.AsyncClient) -> int:
    """Asks how the gateway is until it is cancelled; returns how often it answered."""
    number = 0
    try:
        while True:
            assert (await http.get("/health")).status_code == 200
            number += 1
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return number


async def test_bodies_of_all_shapes_delay_nobody(
    scheduler: FakeScheduler, model_directory: Path
) -> None:
    scheduler.max_model_len, scheduler.script = 8_192, Script([Step([5])])
    async with gateway(scheduler, model_directory) as (http, _):
        probing = asyncio.create_task(probe(http))
        for name, (path, make) in SHAPES.items():
            body = await asyncio.to_thread(make, NUM_BYTES)
            assert len(body) < 2 * NUM_BYTES, name
            response = await http.post(path, content=body, headers=JSON)
            assert response.status_code in (200, 400, 404), (name, response.text)
            assert response.status_code == 200 or len(response.content) < 1_000, name
            if name in TOO_MANY:
                assert response.json()["error"]["code"] == "too_many_values", name
        probing.cancel()
        assert await probing > 10
        lines = (await http.get("/metrics")).text.splitlines()
        delays = dict(line.rsplit(" ", 1) for line in lines if line.startswith(DELAYS))
        num_timely, number = (float(delays[DELAYS + end]) for end in (SECOND, "_count"))
        # The machine may have other things to do.
        assert num_timely >= 0.75 * number
