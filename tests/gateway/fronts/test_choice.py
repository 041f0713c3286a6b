"""Several answers to one request, through the official client."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.request import choice_seed
from tests.gateway.conftest import script_of, until
from tests.gateway.fake_scheduler import USER, FakeScheduler, Say, Script, Step, tokens
from tests.gateway.server.test_app import sample
from tests.gateway.server.test_sse import until_nothing_runs

TEXTS = ["The quick brown fox", "def main(argument):", "東京 jumps"]
CHAT = "/v1/chat/completions"
PREDICTION: Any = [{"type": "content", "content": text} for text in TEXTS]


@pytest.fixture
def choices(scheduler: FakeScheduler, backend: Backend) -> list[Script]:
    """Lets the first three requests answer with three texts, in steps of different widths."""
    scheduler.scripts = [
        script_of(backend, text, width, [accepted], rejected=width, pause_seconds=0.002)
        for text, width, accepted in zip(TEXTS, (2, 3, 1), (2, 0, 1), strict=True)
    ]
    return list(scheduler.scripts)


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


@pytest.mark.parametrize("prediction", [None, PREDICTION[0], PREDICTION])
async def test_whole_answers(
    client: AsyncOpenAI, scheduler: FakeScheduler, choices: list[Script], prediction: Any
) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=USER, n=3, extra_body={"prediction": prediction}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == TEXTS
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage is not None
    require_sum(answer.usage, choices, scheduler.adds[0])


async def test_choices_differ_in_nothing_but_name_and_seed(
    client: AsyncOpenAI, scheduler: FakeScheduler, choices: list[Script]
) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=USER, n=3, seed=7, temperature=0, prediction=PREDICTION
    )
    adds = list(scheduler.adds)
    assert [add.request_id for add in adds] == [f"{answer.id}-{index}" for index in range(3)]
    assert [add.sampling.seed for add in adds] == [choice_seed(7, index) for index in range(3)]
    assert len({add.handle for add in adds}) == 3
    assert len(tokens(adds[0].num_predicted_tokens)) == 3
    for add in adds:
        add.handle, add.request_id, add.sampling.seed = 0, "", 0
    assert adds[0] == adds[1] == adds[2]


async def test_without_a_seed_the_choices_have_different_ones(
    client: AsyncOpenAI, scheduler: FakeScheduler, say: Say
) -> None:
    say("x")
    for _ in range(2):
        answer = await client.chat.completions.create(model="tiny", messages=USER, n=4)
        assert [choice.message.content for choice in answer.choices] == ["x"] * 4
    assert len({add.sampling.seed for add in scheduler.adds}) == 8


async def test_streamed_answers_are_interleaved(
    client: AsyncOpenAI, scheduler: FakeScheduler, choices: list[Script]
) -> None:
    stream = await client.chat.completions.create(
        model="tiny",
        messages=USER,
        n=3,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"prediction": PREDICTION},
    )
    *parts, last = [chunk async for chunk in stream]
    arrived = [choice for part in parts for choice in part.choices]
    assert len(arrived) == len(parts)
    for index, text in enumerate(TEXTS):
        own = [choice for choice in arrived if choice.index == index]
        assert own[0].delta.role == "assistant"
        assert [choice.delta.role for choice in own[1:]] == [None] * (len(own) - 1)
        assert "".join(choice.delta.content or "" for choice in own) == text
        assert [choice.finish_reason for choice in own] == [None] * (len(own) - 1) + ["stop"]
    # Nobody waits for another choice to end.
    assert {choice.index for choice in arrived[:6]} == {0, 1, 2}
    assert last.choices == []
    assert last.usage is not None
    require_sum(last.usage, choices, scheduler.adds[0])
    assert all(part.usage is None for part in parts)
    assert len({(part.id, part.created) for part in [*parts, last]}) == 1


async def test_completions_have_choices_too(
    client: AsyncOpenAI, scheduler: FakeScheduler, choices: list[Script], backend: Backend
) -> None:
    extra = {"return_token_ids": True}
    again = [script_of(backend, text, 2) for text in TEXTS]
    answer = await client.completions.create(
        model="tiny", prompt="a", n=3, best_of=3, extra_body=extra
    )
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(TEXTS))
    given = [choice.model_extra or {} for choice in answer.choices]
    for extras, script in zip(given, choices, strict=True):
        assert extras["token_ids"] == [token for step in script.steps for token in step.token_ids]
    assert [extras["num_accepted_tokens"] for extras in given] == [2, 0, 1]
    assert answer.usage is not None
    assert answer.usage.model_extra == {"num_passes": sum(len(one.steps) for one in choices)}
    scheduler.scripts = again
    stream = await client.completions.create(model="tiny", prompt="a", n=3, stream=True)
    texts = dict.fromkeys(range(3), "")
    async for part in stream:
        texts[part.choices[0].index] += part.choices[0].text
    assert list(texts.values()) == TEXTS


async def test_a_stop_string_ends_one_choice(
    client: AsyncOpenAI, scheduler: FakeScheduler, choices: list[Script]
) -> None:
    scheduler.scripts[1].forever = True
    answer = await client.chat.completions.create(
        model="tiny", messages=USER, n=3, stop=["(arg"], extra_body={"return_token_ids": True}
    )
    assert [choice.message.content for choice in answer.choices] == [TEXTS[0], "def main", TEXTS[2]]
    assert await scheduler.aborts.get() == scheduler.adds[1].handle
    assert scheduler.aborts.empty()
    shown = sum(len((choice.model_extra or {})["token_ids"]) for choice in answer.choices)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == shown < num_tokens(choices)
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert details.rejected_prediction_tokens == 6


async def test_every_choice_has_its_own_finish_reason(
    client: AsyncOpenAI, scheduler: FakeScheduler, choices: list[Script]
) -> None:
    scheduler.scripts[2].reason = scheduler_pb2.FINISH_REASON_LENGTH
    answer = await client.chat.completions.create(model="tiny", messages=USER, n=3)
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop", "length"]


async def aborted(scheduler: FakeScheduler) -> set[int]:
    """Waits for three requests to be aborted; returns their handles."""
    return {await asyncio.wait_for(scheduler.aborts.get(), 10) for _ in range(3)}


async def test_a_choice_that_fails_ends_the_request(
    http: httpx.AsyncClient, scheduler: FakeScheduler, say: Say
) -> None:
    scheduler.script = Script(hang=True)
    failing = Script(reason=scheduler_pb2.FINISH_REASON_REFUSED, message="It cannot run.")
    scheduler.scripts = [scheduler.script, scheduler.script, failing]
    for stream in (False, True):
        body = {"model": "tiny", "messages": USER, "n": 4, "stream": stream}
        response = await http.post(CHAT, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "choice 2: It cannot run."
        handles = [add.handle for add in scheduler.adds]
        assert await aborted(scheduler) == {*handles[:2], handles[3]}
        await until_nothing_runs(http)
        scheduler.adds.clear()
        scheduler.scripts = [scheduler.script, scheduler.script, failing]
    scheduler.scripts = []
    say("x")
    body = {"model": "tiny", "messages": USER, "n": 4}
    assert (await http.post(CHAT, json=body)).status_code == 200


async def test_a_choice_that_fails_later_is_an_error_in_the_stream(
    client: AsyncOpenAI, scheduler: FakeScheduler, backend: Backend
) -> None:
    failing = script_of(backend, TEXTS[0], pause_seconds=0.001, message="The worker is lost.")
    failing.reason = scheduler_pb2.FINISH_REASON_ERROR
    scheduler.scripts = [Script([Step([20])], forever=True, pause_seconds=0.001), failing]
    stream = await client.chat.completions.create(model="tiny", messages=USER, n=2, stream=True)
    seen = set()

    async def read() -> None:
        async for chunk in stream:
            seen.add(chunk.choices[0].index)

    with pytest.raises(openai.APIError, match=r"choice 1: The worker is lost\."):
        await read()
    assert seen == {0, 1}
    assert await scheduler.aborts.get() == scheduler.adds[0].handle


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all_choices(
    client: AsyncOpenAI, http: httpx.AsyncClient, scheduler: FakeScheduler, stream: bool
) -> None:
    # The first choice has ended by then.
    scheduler.scripts = [Script([Step([20, 1])])]
    scheduler.script = Script([Step([20])], forever=True, pause_seconds=0.001)
    asking = asyncio.create_task(
        client.chat.completions.create(model="tiny", messages=USER, n=4, stream=stream)
    )
    await until(lambda: len(scheduler.adds) == 4)
    if stream:
        streamed: Any = await asking
        await streamed.close()
    else:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert await aborted(scheduler) == {add.handle for add in scheduler.adds[1:]}
    await until_nothing_runs(http)
    assert 'outcome="disconnected"' in (await http.get("/metrics")).text


async def test_choices_take_places_of_requests(
    http: httpx.AsyncClient, scheduler: FakeScheduler, say: Say
) -> None:
    scheduler.script = Script(hang=True)
    body = {"model": "tiny", "messages": USER, "n": 3}
    waiting = asyncio.create_task(http.post(CHAT, json=body))
    await until(lambda: len(scheduler.adds) == 3)
    assert await sample(http, "optimist_gateway_requests_running") == 3
    response = await http.post(CHAT, json=body | {"n": 2})
    assert response.status_code == 429
    say("x")
    assert (await http.post(CHAT, json=body | {"n": 1})).status_code == 200
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until_nothing_runs(http)


async def test_metrics_count_the_prompt_once_and_times_of_each_choice(
    http: httpx.AsyncClient, scheduler: FakeScheduler, choices: list[Script]
) -> None:
    body = {"model": "tiny", "messages": USER, "n": 3}
    assert (await http.post(CHAT, json=body)).status_code == 200
    prefix = "optimist_gateway_"
    prompt = len(tokens(scheduler.adds[0].prompt_token_ids))
    assert await sample(http, f"{prefix}prompt_tokens_total") == prompt
    assert await sample(http, f"{prefix}completion_tokens_total") == num_tokens(choices)
    assert await sample(http, f"{prefix}accepted_prediction_tokens_total") == 3
    assert await sample(http, f"{prefix}rejected_prediction_tokens_total") == 6
    assert await sample(http, f"{prefix}time_to_first_token_seconds_count") == 3
    assert await sample(http, f"{prefix}end_to_end_seconds_count") == 1
