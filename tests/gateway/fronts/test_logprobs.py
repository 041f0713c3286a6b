"""Log-probabilities of both endpoints, echo, and the best of several answers."""

from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_gateway.core.answer.logprobs import SMALLEST, TokenLogprob, token_logprob
from optimist_gateway.core.answer.output import TokenLogprobs
from optimist_gateway.fronts.openai.answer_parts import completion_logprobs
from tests.gateway.conftest import script_of
from tests.gateway.fake_scheduler import (
    EOS,
    USER,
    FakeScheduler,
    Say,
    Script,
    Step,
    candidates,
    logprob,
    tokens,
)

TEXT = "The quick 東京 \N{ROCKET} fox"
COMPLETIONS = "/v1/completions"


def require_chat(content: Any, token_ids: list[int], width: int, backend: Backend) -> None:
    """Compares log-probabilities of tokens with what the scheduler said."""
    assert [one.token for one in content] == [text_of(backend, token) for token in token_ids]
    assert [one.logprob for one in content] == [logprob(token) for token in token_ids]
    for one, token in zip(content, token_ids, strict=True):
        likeliest = candidates(token, width)
        assert [top.token for top in one.top_logprobs] == [
            text_of(backend, candidate) for candidate in likeliest
        ]
        assert [top.logprob for top in one.top_logprobs] == [logprob(top) for top in likeliest]


def text_of(backend: Backend, token: int) -> str:
    return backend.decode([token], skip_special_tokens=False)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("num_top", [None, 0, 3])
async def test_chat_tells_each_token(
    client: AsyncOpenAI, say: Say, backend: Backend, width: int, num_top: Any
) -> None:
    token_ids = say(TEXT, width=width, accepted=[width - 1])
    arguments: Any = {"model": "tiny", "messages": USER, "logprobs": True, "top_logprobs": num_top}
    whole = await client.chat.completions.create(**arguments)
    given = whole.choices[0].logprobs
    assert given is not None
    assert given.content is not None
    assert given.refusal is None
    require_chat(given.content, token_ids, num_top or 0, backend)
    # The end has one too, though it is not shown.
    shown = b"".join(bytes(one.bytes or ()) for one in given.content[:-1])
    assert shown.decode() == whole.choices[0].message.content == TEXT
    stream = await client.chat.completions.create(**arguments, stream=True)
    streamed: list[Any] = []
    async for chunk in stream:
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert streamed == given.content


async def test_nothing_comes_unless_it_is_asked_for(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler
) -> None:
    say("fox")
    answer = await client.chat.completions.create(model="tiny", messages=USER, logprobs=False)
    assert answer.choices[0].logprobs is None
    plain = await client.completions.create(model="tiny", prompt="a")
    assert plain.choices[0].logprobs is None
    for add in scheduler.adds:
        assert not add.sampling.HasField("num_logprobs")
        assert not add.sampling.HasField("num_prompt_logprobs")


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("num_top", [0, 2])
async def test_completions_tell_each_token(
    client: AsyncOpenAI, say: Say, backend: Backend, width: int, num_top: int
) -> None:
    token_ids = say(TEXT, width=width)
    whole = await client.completions.create(model="tiny", prompt="a", logprobs=num_top)
    given = whole.choices[0].logprobs
    assert given is not None
    assert given.tokens == [text_of(backend, token) for token in token_ids]
    assert given.token_logprobs == [logprob(token) for token in token_ids]
    assert given.top_logprobs is not None
    for by_text, token in zip(given.top_logprobs, token_ids, strict=True):
        expected: dict[str, float] = {}
        for one in (*candidates(token, num_top), token):
            expected.setdefault(text_of(backend, one), logprob(one))
        assert by_text == expected
    require_offsets(given, TEXT)
    stream = await client.completions.create(
        model="tiny", prompt="a", logprobs=num_top, stream=True
    )
    offsets: list[int] = []
    async for chunk in stream:
        if chunk.choices[0].logprobs is not None:
            offsets += chunk.choices[0].logprobs.text_offset or []
    assert offsets == given.text_offset


def require_offsets(given: Any, text: str) -> None:
    """Tokens that are whole characters stand where their offset says."""
    assert given.text_offset == sorted(given.text_offset)
    for token, offset in zip(given.tokens, given.text_offset, strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert text[offset : offset + len(token)] == token


async def test_tokens_behind_a_stop_string_are_cut(
    client: AsyncOpenAI, say: Say, scheduler: FakeScheduler, backend: Backend
) -> None:
    say("The quick brown fox jumps", width=50)
    answer = await client.completions.create(
        model="tiny",
        prompt="a",
        logprobs=0,
        stop=["brown f"],
        extra_body={"return_token_ids": True},
    )
    choice = answer.choices[0]
    assert choice.text == "The quick "
    assert choice.logprobs is not None
    token_ids: Any = (choice.model_extra or {})["token_ids"]
    assert choice.logprobs.tokens == [text_of(backend, token) for token in token_ids]
    assert "".join(choice.logprobs.tokens).startswith("The quick brown f")
    assert len(choice.logprobs.tokens) < len(scheduler.script.steps[0].token_ids)


@pytest.mark.parametrize("prompt", ["The quick 東 fox", [[20, 30, 1, 40]], "a"])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("max_tokens", [0, 5])
async def test_echo(
    client: AsyncOpenAI,
    say: Say,
    scheduler: FakeScheduler,
    backend: Backend,
    prompt: Any,
    logprobs: Any,
    max_tokens: int,
) -> None:
    answered = say("fox") if max_tokens else [77]
    if not max_tokens:
        scheduler.script = Script([Step(answered)], reason=scheduler_pb2.FINISH_REASON_LENGTH)
    answer = await client.completions.create(
        model="tiny", prompt=prompt, echo=True, logprobs=logprobs, max_tokens=max_tokens
    )
    (choice,) = answer.choices
    add = scheduler.adds[0]
    assert add.max_tokens == max(max_tokens, 1)
    prompt_ids = tokens(add.prompt_token_ids)
    shown = prompt if isinstance(prompt, str) else backend.decode(prompt[0], False)
    assert choice.text == shown + ("fox" if max_tokens else "")
    assert choice.finish_reason == ("stop" if max_tokens else "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_ids)
    assert answer.usage.completion_tokens == (len(answered) if max_tokens else 0)
    if logprobs is None:
        assert choice.logprobs is None
        return
    given: Any = choice.logprobs
    token_ids = [*prompt_ids, *(answered if max_tokens else [])]
    assert given.tokens == [text_of(backend, token) for token in token_ids]
    assert given.token_logprobs == [None, *(logprob(token) for token in token_ids[1:])]
    assert given.top_logprobs[0] is None
    assert all(len(one) <= logprobs + 1 for one in given.top_logprobs[1:])
    require_offsets(given, choice.text)


async def test_an_echo_in_a_stream_comes_before_the_answer(
    http: httpx.AsyncClient, say: Say
) -> None:
    say(" fox jumps")
    body = {"model": "tiny", "prompt": "The quick", "echo": True, "logprobs": 1, "stream": True}
    response = await http.post(COMPLETIONS, json=body)
    first = response.text.split("\n\n")[0]
    assert '"text":"The quick"' in first
    assert '"token_logprobs":[null,' in first


async def test_a_long_prompt_is_echoed_too(client: AsyncOpenAI, say: Say) -> None:
    answered = say("fox")
    prompt = [5 + number % 250 for number in range(600)]
    answer = await client.completions.create(model="tiny", prompt=prompt, echo=True, logprobs=0)
    given = answer.choices[0].logprobs
    assert given is not None
    assert given.tokens is not None
    assert len(given.tokens) == len(prompt) + len(answered)


@pytest.mark.parametrize("part", ["missing", "gap", "no tokens"])
async def test_log_probabilities_that_do_not_come_are_an_error(
    http: httpx.AsyncClient, scheduler: FakeScheduler, part: str
) -> None:
    response = scheduler_pb2.ConnectResponse(
        handles=to_bytes([1]),
        num_tokens=to_bytes([1]),
        token_ids=to_bytes([9]),
        num_accepted_tokens=to_bytes([0]),
        draft_sources=to_bytes([0]),
    )
    if part != "missing":
        message = scheduler_pb2.Logprobs(
            handle=1,
            first_prompt_position=2 if part == "gap" else 1,
            num_prompt_tokens=1,
            logprobs=floats_to_bytes([-1.0]),
        )
        response.logprobs.append(message)
    scheduler.script = Script(raw=response)
    body = {"model": "tiny", "prompt": [5, 6], "echo": True, "logprobs": 0}
    answer = await http.post(COMPLETIONS, json=body)
    assert answer.status_code == 500
    assert "log-probabilities" in answer.json()["error"]["message"]


async def test_the_likeliest_answers_are_given(
    client: AsyncOpenAI, scheduler: FakeScheduler, backend: Backend
) -> None:
    # A token is the less likely, the larger it is; the end counts too.
    scheduler.scripts = [Script([Step([token, EOS])]) for token in (90, 40, 300, 60)]
    answer = await client.completions.create(model="tiny", prompt="a", n=2, best_of=4, max_tokens=9)
    assert [choice.text for choice in answer.choices] == [
        backend.decode([40]),
        backend.decode([60]),
    ]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.logprobs for choice in answer.choices] == [None, None]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert [add.sampling.num_logprobs for add in scheduler.adds] == [0] * 4
    assert len({add.sampling.seed for add in scheduler.adds}) == 4


async def test_each_prompt_has_its_own_choices(
    client: AsyncOpenAI, scheduler: FakeScheduler, backend: Backend
) -> None:
    texts = ["fox", "dog", "main", "index"]
    scheduler.scripts = [script_of(backend, text) for text in texts]
    answer = await client.completions.create(
        model="tiny", prompt=["The quick", "for"], n=2, seed=9, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    expected = ["The quickfox", "The quickdog", "formain", "forindex"]
    assert [choice.text for choice in answer.choices] == expected
    adds = scheduler.adds
    assert [add.request_id for add in adds] == [f"{answer.id}-{index}" for index in range(4)]
    assert [add.sampling.seed for add in adds[:2]] == [add.sampling.seed for add in adds[2:]]
    assert answer.usage is not None
    prompts = [len(backend.encode(prompt).ids) for prompt in ("The quick", "for")]
    assert answer.usage.prompt_tokens == sum(prompts)
    scheduler.scripts = [script_of(backend, text) for text in texts]
    shown = dict.fromkeys(range(4), "")
    async for chunk in await client.completions.create(
        model="tiny", prompt=["The quick", "for"], n=2, stream=True
    ):
        shown[chunk.choices[0].index] += chunk.choices[0].text
    assert list(shown.values()) == texts


def test_what_is_impossible_has_a_number_in_json() -> None:
    given = token_logprob(
        5, TokenLogprobs(float("-inf"), [6], [float("-inf")]), 3, lambda _: ("x", b"x")
    )
    assert given.logprob == given.top[0].logprob == SMALLEST


def test_of_tokens_with_the_same_text_the_likeliest_counts() -> None:
    half = "\ufffd"
    top = (TokenLogprob(1, half, b"\xe6", -0.5), TokenLogprob(2, half, b"\xe7", -1.5))
    given = completion_logprobs([TokenLogprob(3, half, b"\xe8", -2.5, 0, top)])
    assert given is not None
    assert given["top_logprobs"] == [{half: -0.5}]
