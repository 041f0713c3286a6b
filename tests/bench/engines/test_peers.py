"""Peers as processes, with the bundled model; those that are no dependency only where they fail."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from optimist_bench.peers.process import PeerError, PeerProcess, Setup
from optimist_training.data.edits import unseen_edits
from optimist_training.data.tokenizer import end_token, prompt_of
from tests.stack import BUNDLED_MODEL

SETUP = Setup(
    model=str(BUNDLED_MODEL),
    draft_model="",
    max_tokens=24,
    max_model_len=512,
    max_concurrency=2,
    num_threads=1,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))


@contextmanager
def _started(name: str, setup: Setup = SETUP, python: str = "") -> Iterator[PeerProcess]:
    process = PeerProcess(name, setup, python)
    try:
        yield process
    finally:
        process.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generate", "prompt_lookup", "continuous_batching", "assisted"])
def test_a_peer_answers_as_the_model_does(name: str, tokenizer: Tokenizer) -> None:
    edits = unseen_edits(3, 0)
    prompts = [tokenizer.encode(prompt_of(edit.messages())).ids for edit in edits]
    expected = [tokenizer.encode(edit.after).ids[: SETUP.max_tokens] for edit in edits]
    # The model drafts for itself: all drafts are right.
    setup = Setup(**{**vars(SETUP), "draft_model": SETUP.model})
    with _started(name, setup) as peer:
        peer.wait_until_ready()
        for concurrency in (1, 2):
            answers, seconds = peer.answer(prompts, concurrency)
            end = end_token(tokenizer)
            assert [[token for token in answer if token != end] for answer in answers] == expected
            assert seconds > 0


def test_a_peer_without_its_package_says_so() -> None:
    with (
        _started("vllm_cpu", python=sys.executable) as peer,
        pytest.raises(PeerError, match=r"^ModuleNotFoundError: No module named 'vllm'$"),
    ):
        peer.wait_until_ready()


def test_an_interpreter_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(PeerError, match=r"^/nowhere/python: No such file"):
        PeerProcess("generate", SETUP, "/nowhere/python")


def test_an_interpreter_that_ends_at_once_is_an_error() -> None:
    with (
        _started("generate", python="/bin/false") as peer,
        pytest.raises(PeerError, match="ended with code 1 and said nothing"),
    ):
        peer.wait_until_ready()


@pytest.mark.slow
def test_a_peer_that_lacks_a_file_says_so(tmp_path: Path) -> None:
    setup = Setup(**{**vars(SETUP), "model": str(tmp_path)})
    with _started("generate", setup) as peer, pytest.raises(PeerError, match=str(tmp_path)):
        peer.wait_until_ready()
