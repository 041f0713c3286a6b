"""Log-probabilities of both endpoints; echo."""

from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes
from tests.gateway.fake_scheduler import Script, Step, candidates, logprob, step_of, tokens
from tests.gateway.harness import COMPLETIONS, Gateway, script_of

TEXT = "The quick 東京 \N{ROCKET} fox"


def text_of(backend: Backend, token: int) -> str:
    return backend.decode([token], skip_special_tokens=False)


@pytest.mark.parametrize(("width", "num_top"), [(1, None), (4, 3)])
async def test_chat_has_each_token(
    gateway: Gateway, backend: Backend, width: int, num_top: Any
) -> None:
    token_ids = gateway.say(TEXT, width=width, accepted=[width - 1])
    arguments: Any = {"logprobs": True, "top_logprobs": num_top}
    choice = (await gateway.chat(**arguments)).choices[0]
    content = choice.logprobs.content
    assert choice.logprobs.refusal is None
    assert [one.token for one in content] == [text_of(backend, token) for token in token_ids]
    assert [one.logprob for one in content] == [logprob(token) for token in token_ids]
    for one, token in zip(content, token_ids, strict=True):
        likely = candidates(token, num_top or 0)
        expected = [(text_of(backend, each), logprob(each)) for each in likely]
        assert [(top.token, top.logprob) for top in one.top_logprobs] == expected
    # The end has one too, though it is not shown.
    shown = b"".join(bytes(one.bytes or ()) for one in content[:-1])
    assert shown.decode() == choice.message.content == TEXT
    streamed: list[Any] = []
    async for chunk in await gateway.chat(**arguments, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert streamed == content


@pytest.mark.parametrize(("width", "num_top"), [(1, 0), (3, 2)])
async def test_completions_have_those_of_each_token(
    gateway: Gateway, backend: Backend, width: int, num_top: int
) -> None:
    token_ids = gateway.say(TEXT, width=width)
    given = (await gateway.complete(logprobs=num_top)).choices[0].logprobs
    assert given.tokens == [text_of(backend, token) for token in token_ids]
    assert given.token_logprobs == [logprob(token) for token in token_ids]
    for by_text, token in zip(given.top_logprobs, token_ids, strict=True):
        # Of tokens with the same text, the likeliest counts.
        likely = [token, *reversed(candidates(token, num_top))]
        assert by_text == {text_of(backend, one): logprob(one) for one in likely}
    require_offsets(given, TEXT)
    offsets: list[int] = []
    async for chunk in await gateway.complete(logprobs=num_top, stream=True):
        if chunk.choices[0].logprobs is not None:
            offsets += chunk.choices[0].logprobs.text_offset or []
    assert offsets == given.text_offset


def require_offsets(given: Any, text: str) -> None:
    """Tokens that are whole characters stand where their offset says."""
    assert given.text_offset == sorted(given.text_offset)
    for token, offset in zip(given.tokens, given.text_offset, strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert text[offset : offset + len(token)] == token


@pytest.mark.parametrize("prompt", ["The quick 東 fox", [[20, 30, 1, 40]]], ids=["text", "tokens"])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("max_tokens", [0, 5])
async def test_echo(
    gateway: Gateway, backend: Backend, prompt: Any, logprobs: Any, max_tokens: int
) -> None:
    answered = gateway.say("fox")
    if not max_tokens:
        gateway.scheduler.script = Script([Step([77])], scheduler_pb2.FINISH_REASON_LENGTH)
    options = {"prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": max_tokens}
    answer = await gateway.complete(**options)
    (choice,) = answer.choices
    assert gateway.adds[0].max_tokens == max(max_tokens, 1)
    prompt_ids = tokens(gateway.adds[0].prompt_token_ids)
    shown = prompt if isinstance(prompt, str) else backend.decode(prompt[0], False)
    assert choice.text == shown + ("fox" if max_tokens else "")
    assert choice.finish_reason == ("stop" if max_tokens else "length")
    assert answer.usage.prompt_tokens == len(prompt_ids)
    assert answer.usage.completion_tokens == (len(answered) if max_tokens else 0)
    given = choice.logprobs
    if logprobs is None:
        assert given is None
        return
    token_ids = [*prompt_ids, *(answered if max_tokens else [])]
    assert given.tokens == [text_of(backend, token) for token in token_ids]
    assert given.token_logprobs == [None, *(logprob(token) for token in token_ids[1:])]
    assert given.top_logprobs[0] is None
    assert all(len(one) <= logprobs + 1 for one in given.top_logprobs[1:])
    require_offsets(given, choice.text)


async def test_a_long_echo_comes_in_parts_that_join(gateway: Gateway, backend: Backend) -> None:
    text = TEXT * 400
    token_ids = backend.encode(text).ids
    assert len(token_ids) > 2 * 1024
    fields = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 3}
    fields |= {"include_provenance": True}
    gateway.say(" fox")
    (choice,) = (await gateway.answer(COMPLETIONS, **fields))["choices"]
    assert choice["text"] == text + " fox"
    found = choice["logprobs"]
    assert found["tokens"][: len(token_ids)] == [text_of(backend, token) for token in token_ids]
    assert len(found["top_logprobs"]) == len(found["text_offset"]) == len(found["tokens"])
    first, *_ = choice["provenance"]
    assert (first["source"], first["text"], first["num_tokens"]) == ("prompt", text, len(token_ids))
    chunks = [one["choices"][0] for one in await gateway.chunks(COMPLETIONS, **fields)]
    assert "".join(one["text"] for one in chunks) == choice["text"]
    shown = [one["logprobs"] for one in chunks if one["logprobs"] is not None]
    assert max(len(one["tokens"]) for one in shown) == 1024
    for name in found:
        assert [value for one in shown for value in one[name]] == found[name]


@pytest.mark.parametrize("part", ["missing", "gap", "no tokens"])
async def test_log_probabilities_that_do_not_come_are_an_error(gateway: Gateway, part: str) -> None:
    def lacking(handle: int) -> scheduler_pb2.ConnectResponse:
        response = step_of(handle, [9])
        if part != "missing":
            message = response.logprobs.add(handle=handle, num_prompt_tokens=1)
            message.first_prompt_position = 2 if part == "gap" else 1
            message.logprobs = floats_to_bytes([-1.0])
        return response

    gateway.scheduler.script = Script(raw=lacking)
    error = await gateway.refused(COMPLETIONS, 500, prompt=[5, 6], echo=True, logprobs=0)
    assert "log-probabilities" in error["message"]


async def test_each_prompt_has_its_own_choices(gateway: Gateway, backend: Backend) -> None:
    texts = ["fox", "dog", "main", "index"]
    options: Any = {"prompt": ["The quick", "for"], "n": 2}
    gateway.scheduler.scripts = [script_of(backend, text) for text in texts]
    answer = await gateway.complete(**options, seed=9, echo=True)
    expected = ["The quickfox", "The quickdog", "formain", "forindex"]
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(expected))
    adds = gateway.adds
    assert [add.request_id for add in adds] == [f"{answer.id}-{index}" for index in range(4)]
    assert [add.sampling.seed for add in adds[:2]] == [add.sampling.seed for add in adds[2:]]
    prompts = [len(backend.encode(prompt).ids) for prompt in options["prompt"]]
    assert answer.usage.prompt_tokens == sum(prompts)
    gateway.scheduler.scripts = [script_of(backend, text) for text in texts]
    shown = dict.fromkeys(range(4), "")
    async for chunk in await gateway.complete(**options, stream=True):
        shown[chunk.choices[0].index] += chunk.choices[0].text
    assert list(shown.values()) == texts
