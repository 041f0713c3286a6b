"""Limits that a client asks for are upper bounds."""

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, FakeScheduler
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Fields, Gateway, Start

# anomalyco/opencode#9611, vllm-project/vllm#19861
LARGE: list[tuple[str, Fields]] = [
    (CHAT, {"max_tokens": 32_000}),
    (CHAT, {"max_tokens": 2**31 - 1, "max_completion_tokens": 2**31 - 1}),
    (CHAT, {"max_tokens": -1}),
    (COMPLETIONS, {"max_tokens": MAX_MODEL_LEN, "prompt": ["a", "b" * 50], "n": 2}),
    (RESPONSES, {"max_output_tokens": 128_000}),
]


@pytest.mark.parametrize(("path", "fields"), LARGE, ids=lambda one: str(one)[:50])
async def test_answers_are_as_long_as_fits(gateway: Gateway, path: str, fields: Fields) -> None:
    gateway.say("The quick", reason=scheduler_pb2.FINISH_REASON_LENGTH)
    await gateway.answer(path, **fields)
    for add in gateway.adds:
        assert len(add.prompt_token_ids) // 4 + add.max_tokens == MAX_MODEL_LEN


async def test_the_smaller_of_two_limits_holds(gateway: Gateway) -> None:
    gateway.say("fine")
    await gateway.answer(CHAT, max_tokens=7, max_completion_tokens=5)
    await gateway.answer(CHAT, max_tokens=5, max_completion_tokens=32_000)
    assert [add.max_tokens for add in gateway.adds] == [5, 5]


async def test_only_a_prompt_that_leaves_no_room_is_refused(gateway: Gateway) -> None:
    gateway.say("fine")
    await gateway.answer(COMPLETIONS, prompt=[5] * (MAX_MODEL_LEN - 1), max_tokens=500)
    assert gateway.adds[-1].max_tokens == 1
    error = await gateway.refused(COMPLETIONS, prompt=[5] * MAX_MODEL_LEN, max_tokens=1)
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")


async def test_drafts_are_at_most_as_many_as_the_server_verifies(start: Start) -> None:
    async with start(FakeScheduler(max_draft_tokens=8)) as gateway:
        gateway.say("fine")
        for asked in (0, 7, 8, 9, 1000, None):
            await gateway.answer(COMPLETIONS, num_speculative_tokens=asked)
        bounds = [add.max_draft_tokens for add in gateway.adds if add.HasField("max_draft_tokens")]
    assert bounds == [0, 7, 8, 8, 8]


# continuedev/continue#1371, open-webui/open-webui#13149
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_there_may_be_many_stops(gateway: Gateway, path: str) -> None:
    gateway.say("The quick brown fox")
    stop = [*(f"never {index}" for index in range(63)), "brown"]
    answer = str(await gateway.answer(path, stop=stop))
    assert "The quick " in answer
    assert "brown" not in answer
