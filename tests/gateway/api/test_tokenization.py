"""Tokens of texts and conversations, texts of tokens, and what the tokenizer is."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import CHAT_TEMPLATE
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, tokens
from tests.gateway.harness import USER, Fields, Gateway, starting

TEXT = "The quick 東京 <|end|> fox"


# The long one is tokenized in a thread.
@pytest.mark.parametrize(
    ("text", "with_strings"), [(TEXT, True), ("The quick fox. " * 200, None)], ids=["short", "long"]
)
async def test_a_text_there_and_back(gateway: Gateway, text: str, with_strings: Any) -> None:
    token_ids = gateway.backend.encode(text).ids
    strings = [gateway.backend.decode([token], False) for token in token_ids]
    fields = {"model": "tiny", "prompt": text, "return_token_strs": with_strings}
    expected: Fields = {"tokens": token_ids, "token_strs": strings if with_strings else None}
    expected |= {"count": len(token_ids), "max_model_len": MAX_MODEL_LEN}
    assert await gateway.answer("/tokenize", **fields) == expected
    assert await gateway.answer("/detokenize", tokens=token_ids) == {"prompt": text}


async def test_a_conversation_is_what_a_chat_is_given(gateway: Gateway) -> None:
    gateway.say("x")
    await gateway.chat()
    expected = tokens(gateway.adds[0].prompt_token_ids)
    assert (await gateway.answer("/tokenize", messages=USER))["tokens"] == expected
    shorter = await gateway.answer("/tokenize", messages=USER, add_generation_prompt=False)
    decode = gateway.backend.decode
    assert decode(expected) == decode(shorter["tokens"]) + "<|assistant|>"


async def test_special_tokens_are_added_if_wanted(model_directory: Path, backend: Backend) -> None:
    wrapped = AutoTokenizer.from_pretrained(model_directory)
    begins = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 1)])
    wrapped.backend_tokenizer.post_processor = begins
    async with starting(
        model_directory, Tokenizer(wrapped, {"default": CHAT_TEMPLATE}), backend
    ) as gateway:

        async def tokenized(**fields: Any) -> Any:
            return (await gateway.answer("/tokenize", **fields))["tokens"]

        without = await tokenized(prompt="fox", add_special_tokens=False)
        assert await tokenized(prompt="fox") == [1, *without]
        chat = await tokenized(messages=USER)
        assert await tokenized(messages=USER, add_special_tokens=True) == [1, *chat]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"prompt": "a" * 150_000}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {"tokens": [100_000]}, "tokens"),
    ],
    ids=lambda one: str(one)[:60],
)
async def test_wrong_values(gateway: Gateway, path: str, body: Fields, param: str) -> None:
    error = await gateway.refused(path, 404 if param == "model" else 400, **body)
    assert error["param"] == param
    assert (error["code"] == "model_not_found") is (param == "model")
