"""Several answers to one request, through the official client."""

import asyncio
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.request import choice_seed
from tests.gateway.fake_scheduler import Script, Step, tokens
from tests.gateway.harness import CHAT, Gateway, Start, script_of, until

TEXTS = ["The quick brown fox", "def main(argument):", "東京 jumps"]
PREDICTION: Any = [{"type": "content", "content": text} for text in TEXTS]


def say_three(gateway: Gateway) -> list[Script]:
    """Lets the first three requests answer with three texts, in steps of different widths."""
    scripts = [
        script_of(gateway.backend, text, width, [accepted], rejected=width, pause_seconds=0.02)
        for text, width, accepted in zip(TEXTS, (2, 3, 1), (2, 0, 1), strict=True)
    ]
    gateway.scheduler.scripts = list(scripts)
    return scripts


def num_tokens(scripts: list[Script]) -> int:
    return sum(len(step.token_ids) for script in scripts for step in script.steps)


def require_sum(usage: Any, scripts: list[Script], add: scheduler_pb2.Add) -> None:
    """Compares a usage with what the scheduler said of all choices."""
    assert usage.prompt_tokens == len(tokens(add.prompt_token_ids))
    assert usage.completion_tokens == num_tokens(scripts)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == 3
    assert details.rejected_prediction_tokens == 2 + 3 + 1
    assert details.tokens_by_source == {"target": num_tokens(scripts) - 3, "prediction": 3}


async def test_choices_differ_in_nothing_but_name_and_seed(gateway: Gateway) -> None:
    say_three(gateway)
    answer = await gateway.chat(n=3, seed=7, temperature=0, prediction=PREDICTION)
    adds = list(gateway.adds)
    assert [add.request_id for add in adds] == [f"{answer.id}-{index}" for index in range(3)]
    assert [add.sampling.seed for add in adds] == [choice_seed(7, index) for index in range(3)]
    assert len({add.handle for add in adds}) == 3
    assert len(tokens(adds[0].num_predicted_tokens)) == 3
    for add in adds:
        add.handle, add.request_id, add.sampling.seed = 0, "", 0
    assert adds[0] == adds[1] == adds[2]


SEEDS = st.integers(-(2**63), 2**63 - 1)


@given(SEEDS, st.integers(1, 128))
def test_all_fit_and_differ_also_from_those_of_seeds_close_by(seed: int, near: int) -> None:
    near = (seed + near + 2**63) % 2**64 - 2**63
    seeds = [choice_seed(one, index) for one in (seed, near) for index in range(128)]
    assert all(-(2**63) <= one < 2**63 for one in seeds)
    assert len(set(seeds)) == len(seeds)


async def test_streamed_answers_are_interleaved(gateway: Gateway) -> None:
    choices = say_three(gateway)
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await gateway.chat({"prediction": PREDICTION}, n=3, **options)
    *parts, last = [chunk async for chunk in stream]
    arrived = [choice for part in parts for choice in part.choices]
    assert len(arrived) == len(parts)
    for index, text in enumerate(TEXTS):
        own = [choice for choice in arrived if choice.index == index]
        assert [choice.delta.role for choice in own] == ["assistant"] + [None] * (len(own) - 1)
        assert "".join(choice.delta.content or "" for choice in own) == text
        assert [choice.finish_reason for choice in own] == [None] * (len(own) - 1) + ["stop"]
    # Nobody waits for another choice to end.
    end = next(i for i, choice in enumerate(arrived) if choice.finish_reason)
    assert {choice.index for choice in arrived[:end]} == {0, 1, 2}
    assert last.choices == []
    require_sum(last.usage, choices, gateway.adds[0])
    assert all(part.usage is None for part in parts)
    assert len({(part.id, part.created) for part in [*parts, last]}) == 1


async def aborted(gateway: Gateway, number: int = 3) -> set[int]:
    """Waits for requests to be aborted; returns their handles."""
    aborts = gateway.scheduler.aborts
    return {await asyncio.wait_for(aborts.get(), 10) for _ in range(number)}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_fails_ends_the_request(gateway: Gateway, stream: bool) -> None:
    scheduler = gateway.scheduler
    scheduler.script = Script(hang=True)
    failing = Script(reason=scheduler_pb2.FINISH_REASON_REFUSED, message="It cannot run.")
    scheduler.scripts = [scheduler.script, scheduler.script, failing]
    error = await gateway.refused(CHAT, n=4, stream=stream)
    assert error["message"] == "choice 2: It cannot run."
    handles = [add.handle for add in gateway.adds]
    assert await aborted(gateway) == {*handles[:2], handles[3]}
    await gateway.until_nothing_runs()
    gateway.say("x")
    await gateway.answer(CHAT, n=4)


async def test_a_choice_that_fails_later_is_an_error_in_the_stream(gateway: Gateway) -> None:
    failing = script_of(gateway.backend, TEXTS[0], pause_seconds=0.001)
    failing.message, failing.reason = "The worker is lost.", scheduler_pb2.FINISH_REASON_ERROR
    endless = Script([Step([20])], forever=True, pause_seconds=0.001)
    gateway.scheduler.scripts = [endless, failing]
    stream = await gateway.chat(n=2, stream=True)
    seen = set()

    async def read() -> None:
        async for chunk in stream:
            seen.add(chunk.choices[0].index)

    with pytest.raises(openai.APIError, match=r"choice 1: The worker is lost\."):
        await read()
    assert seen == {0, 1}
    assert await gateway.scheduler.aborts.get() == gateway.adds[0].handle


# While nothing was said, a stream has not begun.
@pytest.mark.parametrize(("stream", "says"), [(False, True), (True, True), (True, False)])
async def test_a_client_that_leaves_ends_all(start: Start, stream: bool, says: bool) -> None:
    async with start() as gateway:
        # The first choice has ended by then, or is about to.
        gateway.scheduler.scripts = [Script([Step([20, 1])])] if says else [Script(hang=True)]
        endless = Script([Step([20])], forever=True, pause_seconds=0.001)
        gateway.scheduler.script = endless if says else Script(hang=True)
        asking = asyncio.create_task(gateway.chat(n=4, stream=stream))
        await until(lambda: len(gateway.adds) == 4)
        if stream and says:
            await (await asking).close()
        else:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        first, handles = gateway.adds[0].handle, {add.handle for add in gateway.adds[says:]}
        ended = await aborted(gateway, len(handles))
        if says and first in ended:
            # Its end was on the way when the client left.
            ended = ended - {first} | await aborted(gateway, 1)
        assert ended == handles
        await gateway.until_nothing_runs()
        await gateway.until_shown('outcome="disconnected"')
