"""What happens when the scheduler is slow, gone, or back."""

import gc
from asyncio import sleep
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.schedulers.requests import SchedulerUnavailableError
from tests.gateway.fake_scheduler import EOS, FakeScheduler, Script, Step, start_scheduler
from tests.gateway.harness import CHAT, USER, Start, error_of, script_of
from tests.gateway.schedulers.fleet import VOCAB_SIZE, fleet_of
from tests.stack import free_port


async def test_an_answer_goes_out_without_its_account_if_the_scheduler_is_lost() -> None:
    async with fleet_of(1, 0) as fleet:
        fleet.fakes[0].script = Script([Step([7])], break_stream=True)
        stream = fleet.read()
        assert (await anext(stream)).token_ids == [7]
        assert await stream.finish() is None


@pytest.mark.parametrize(
    "columns", [{"handles": b"\1\0\0\0"}, {"handles": b"\1\0"}, {"num_tokens": b"\1\0\0\0"}]
)
async def test_what_is_not_in_the_contract_ends_the_requests_and_not_the_client(
    columns: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet_of(1, 0) as fleet:
        (scheduler,) = fleet.fakes
        # The scheduler ends the stream while it waits for commands.
        scheduler.script = Script(raw=lambda _: scheduler_pb2.ConnectResponse(**columns))
        with pytest.raises(SchedulerUnavailableError):
            await anext(fleet.read())
        await fleet.until_connected(1)
        gc.collect()
        await sleep(0)
        assert [record for record in caplog.records if record.name == "asyncio"] == []
        scheduler.script = Script([Step([EOS])])
        assert (await anext(fleet.read())).token_ids == [EOS]


async def test_a_scheduler_that_takes_no_commands_is_not_waited_for() -> None:
    async with fleet_of(1, 0, max_num_requests=1) as fleet:
        fleet.fakes[0].script = Script(hang=True)
        for _ in range(4):
            fleet.read()
        with pytest.raises(SchedulerUnavailableError, match="fast enough"):
            fleet.read()


async def test_an_unreachable_scheduler_is_503_and_found_when_it_comes(start: Start) -> None:
    port = free_port()
    async with start(waits=False, schedulers=[f"127.0.0.1:{port}"]) as gateway:
        for path, status in (("/live", 200), ("/startup", 503), ("/ready", 503), ("/health", 503)):
            response = await gateway.http.get(path)
            assert response.status_code == status
            assert ("retry-after" in response.headers) is (status == 503)
        assert str(port) in (await gateway.http.get("/health")).json()["reason"]
        for path in (CHAT, "/tokenize"):
            response = await gateway.post(path, messages=USER)
            assert error_of(response, 503)["code"] == "scheduler_unavailable"
            assert response.headers["retry-after"] == "1"
        assert (await gateway.http.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        assert (await gateway.http.get("/tokenizer_info")).status_code == 200
        schemas = (await gateway.http.get("/openapi.json")).json()["components"]["schemas"]
        assert "maximum" not in schemas["DetokenizeBody"]["properties"]["tokens"]["items"]
        script = script_of(gateway.backend, "The quick")
        server, _ = await start_scheduler(FakeScheduler(VOCAB_SIZE, script), port)
        await gateway.until_healthy()
        assert (await gateway.chat()).choices[0].message.content == "The quick"
        await server.stop()
