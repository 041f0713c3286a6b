"""Predictions of one request, on their way to the scheduler."""

from itertools import accumulate, pairwise
from typing import Any

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import Request
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.text.prediction import MAX_TOKENS, predicted_tokens
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, tokens
from tests.gateway.harness import Fields, Gateway

TEXTS = ["def main(argument):\r\n    return 1\r", "The quick brown fox", "東京 \N{ROCKET}"]


def content(text: Any) -> Fields:
    return {"type": "content", "content": text}


PARTS = [{"type": "text", "text": part} for part in ("The quick", " brown fox")]


def predictions(add: scheduler_pb2.Add) -> list[list[int]]:
    """Reads the predictions of a command as the contract says."""
    token_ids = tokens(add.predicted_token_ids)
    lengths = tokens(add.num_predicted_tokens) or [len(token_ids)]
    assert sum(lengths) == len(token_ids)
    return [token_ids[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


async def sent(gateway: Gateway, extra: Fields) -> list[list[int]]:
    """Returns the predictions that reach the scheduler through either endpoint."""
    gateway.say("x")
    await gateway.chat(extra)
    await gateway.complete(extra)
    chat, plain = (predictions(add) for add in gateway.adds)
    assert chat == plain
    return chat


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (content(TEXTS[0]), TEXTS[:1]),
        (content(PARTS), TEXTS[1:2]),
        ([content(TEXTS[0]), content(PARTS), content(TEXTS[2])], TEXTS),
        # Up to the limit.
        ([content("ä" * 10_000), content("a" * 40_000)], ["ä" * 10_000, "a" * 40_000]),
    ],
    ids=["one", "parts", "several", "long"],
)
async def test_texts(gateway: Gateway, given: Any, expected: list[str]) -> None:
    texts = [text.replace("\r\n", "\n").replace("\r", "\n") for text in expected]
    ids = [gateway.backend.encode(text).ids[:MAX_MODEL_LEN] for text in texts]
    assert await sent(gateway, {"prediction": given}) == ids


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prediction": [content(""), content("fox"), content([])]}, ["fox"]),
        ({"predicted_token_ids": [[], [], []]}, [""]),
        ({"predicted_token_ids": None, "prediction": None}, [""]),
    ],
)
async def test_what_is_empty(gateway: Gateway, given: Fields, expected: list[str]) -> None:
    encoded = [gateway.backend.encode(text).ids for text in expected]
    assert await sent(gateway, given) == encoded
    # One prediction, or none, reads as it did before there could be several.
    assert gateway.adds[0].num_predicted_tokens == b""


async def test_a_long_model_has_no_more_than_the_scheduler_takes(tokenizer: Tokenizer) -> None:
    model = ModelDescription(512, MAX_TOKENS + 5, (1,))

    async def lengths(*wanted: int) -> list[int]:
        given = [[5] * length for length in wanted]
        request = Request(model="tiny", prompts=("a",), predictions=given)
        sent = await predicted_tokens(request, tokenizer, model, 1)
        return [len(one.token_ids) for one in sent]

    assert await lengths(MAX_TOKENS + 1) == [MAX_TOKENS]
    assert await lengths(1, MAX_TOKENS - 1) == [1, MAX_TOKENS - 1]
    with pytest.raises(FieldError) as caught:
        await lengths(1, MAX_TOKENS)
    assert caught.value.path == ("predictions", 1)
