"""A model with fewer tokens than its tokenizer, to which some were added."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from optimist_gateway.text.tokenizer import load_tokenizer
from tests.gateway.conftest import CHAT_TEMPLATE
from tests.gateway.fake_scheduler import EOS, Script, Step, tokens
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Fields, Gateway, starting

NEW = ["<|new|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
NEW += ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
SIZE = 368
LACKED = "368 ('<|new|>') is not a token of this model (0 to 367)"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, backend: Backend
) -> AsyncIterator[Gateway]:
    directory = tmp_path_factory.mktemp("larger") / "tiny"
    larger = Backend.from_str(backend.to_str())
    larger.add_tokens([AddedToken(one, special=True, normalized=False) for one in NEW])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=larger, eos_token="<|end|>"
    )
    # It writes calls of earlier turns so.
    calls = '{% if not tools and messages[0].tool_calls %}<tool_call>{"name"{% endif %}'
    tokenizer.chat_template = CHAT_TEMPLATE + calls
    tokenizer.save_pretrained(directory)
    assert backend.get_vocab_size() == SIZE
    async with starting(directory, load_tokenizer(str(directory)), backend) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": ["a", "<|new|>"]}, "prompt[1]"),
        (CHAT, {"messages": [{"role": "user", "content": "a <|new|>"}]}, "messages"),
        (RESPONSES, {"input": "a <|new|>"}, "input"),
    ],
)
async def test_a_prompt_with_a_token_that_the_model_lacks_is_named(
    gateway: Gateway, path: str, fields: Fields, param: str
) -> None:
    error = await gateway.refused(path, **fields)
    assert error["param"] == param
    assert error["message"] == f"{param}: {LACKED}"


async def test_tokens_of_the_client_are_named(gateway: Gateway) -> None:
    lacked: dict[str, Any] = {
        "prompt": [5, SIZE],
        "stop_token_ids": [SIZE],
        "logit_bias": {str(SIZE): 1},
        "predicted_token_ids": [5, SIZE],
    }
    for name, value in lacked.items():
        error = await gateway.refused(COMPLETIONS, **{name: value})
        assert error["param"].startswith(name)
        assert "368 is not a token of this model (0 to 367)" in error["message"]


async def test_a_prediction_is_cut_before_such_a_token(gateway: Gateway) -> None:
    known = "The quick\r\n"
    prediction = {"type": "content", "content": f"{known}<|new|> brown fox"}
    expected = gateway.backend.encode(known, add_special_tokens=False).ids
    step = Step([*expected, EOS], len(expected), positions=range(len(expected)))
    gateway.scheduler.script = Script([step])
    answer = await gateway.answer(COMPLETIONS, prediction=prediction, include_provenance=True)
    add = gateway.adds[-1]
    # Its line ends are those of the prompt.
    lf = gateway.backend.encode("The quick\n", add_special_tokens=False).ids
    assert tokens(add.predicted_token_ids) == lf
    (choice,) = answer["choices"]
    span = {"index": 0, "start": 0, "end": len(known)}
    assert choice["provenance"][0]["prediction"] == span
    # Nothing is left of one that begins with it.
    gateway.say("a")
    prediction["content"] = "<|new|>a"
    await gateway.answer(COMPLETIONS, prediction=prediction)
    assert not gateway.adds[-1].predicted_token_ids


async def test_answers_follow_forms_and_marks_are_written_as_text(gateway: Gateway) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    gateway.say("{}")
    await gateway.answer(CHAT, response_format=form)
    assert gateway.adds[-1].sampling.grammar
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    gateway.say('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    answer = await gateway.answer(CHAT, tools=[tool], tool_choice="required")
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert "<[36" not in gateway.adds[-1].sampling.grammar


async def test_what_needs_such_tokens_is_refused(gateway: Gateway) -> None:
    error = await gateway.refused(COMPLETIONS, suffix="b")
    assert "no tokens to fill in the middle" in error["message"]
    error = await gateway.refused(COMPLETIONS, structured_outputs={"grammar": "start: <[368]>"})
    assert error["param"] == "structured_outputs.grammar"
