"""A proposer at --log-level debug says how requests are aligned, by either algorithm."""

import logging
from array import array

import pytest

from optimist_aligner.text.sources import INT32
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_proposer.core.messages import Observation, Open
from optimist_proposer.service import build_proposer
from optimist_proposer.settings import ProposerSettings

TEXTS = "\n abcdefghijklmnopqrstuvwxyz"
PREDICTION = "def one\nx is a\ndef two\ny is b\n"


def tokens(text: str) -> "array[int]":
    return array(INT32, map(TEXTS.index, text))


async def follow(algorithm: str, *outputs: str, prediction: str = "", prompt: str = "") -> None:
    """Has a request followed, whose output comes in some pieces."""
    settings = ProposerSettings.model_validate(
        {"model": "x", "algorithm": algorithm, "log_level": "debug"}
    )
    async with build_proposer(settings, Vocabulary(TEXTS)) as proposer:
        opening, position = Open("a", [tokens(prediction)], tokens(prompt), ""), 0
        await proposer.apply([opening], [], [])
        for output in outputs:
            await proposer.apply([], [Observation("a", position, tokens(output))], [])
            position += len(output)


@pytest.fixture(autouse=True)
def _debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "optimist_proposer.observing.alignment_log")


async def test_those_of_the_default_algorithm_too(caplog: pytest.LogCaptureFixture) -> None:
    await follow("auto", "def one\nx is", " b\ndef two", prediction=PREDICTION)
    await follow("auto", "def one\n", "x is a\nd", prompt=PREDICTION)
    assert "from prediction 1, line 1, token 1: 'd'" in caplog.text
    assert "lost at prediction 1, line 2, token 6: 'b' came, not 'a'" in caplog.text
    assert "of the prompt: 'x'" in caplog.text
