"""Serves each kind of decoder and compares its text with transformers' own."""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from optimist_common.errors import SetupError, one_line
from optimist_worker.runner.runner import Runner
from tests.models.kinds import expected_text, small_checkpoint
from tests.worker.step import build_runner, generate

EQUAL, REFUSED, NOT_BUILT, WRONG = "equal", "refused", "not built", "WRONG"
_NUM_TOKENS = 24


@dataclass(frozen=True)
class Outcome:
    """What became of a kind."""

    name: str
    verdict: str
    reason: str = ""


def try_kind(name: str) -> Outcome:
    """Makes a small checkpoint of a kind, serves it, and compares its text.

    The text is generated whole, with the prompt in chunks, and with predictions, of which every
    third token is wrong.
    """
    with tempfile.TemporaryDirectory() as directory:
        try:
            path = small_checkpoint(name, Path(directory))
        except Exception as error:
            return Outcome(name, NOT_BUILT, f"{type(error).__name__}: {one_line(error)}")
        try:
            runner = build_runner(path, "float32")
        except SetupError as error:
            return Outcome(name, REFUSED, str(error).replace(str(path), "DIRECTORY"))
        except Exception as error:
            return Outcome(name, WRONG, f"crash: {type(error).__name__}: {one_line(error)}")
        try:
            return Outcome(name, *_compare(runner, path))
        except Exception as error:
            return Outcome(name, WRONG, f"crash: {type(error).__name__}: {one_line(error)}")


def _compare(runner: Runner, path: Path) -> tuple[str, str]:
    auto_model: Any = AutoModelForCausalLM
    module = auto_model.from_pretrained(path, attn_implementation="eager")
    prompt = random.Random(5).choices(range(3, runner.engine.model.vocab_size), k=20)
    wanted = expected_text(module, prompt, _NUM_TOKENS)
    guess = [token if at % 3 else 3 + token % 7 for at, token in enumerate(wanted)]
    found = {
        "whole": generate(runner, prompt, _NUM_TOKENS),
        "in chunks": generate(runner, prompt, _NUM_TOKENS, chunk=7),
        "with drafts": generate(
            runner,
            prompt,
            _NUM_TOKENS,
            predict=lambda output: guess[len(output) : len(output) + 8],
            width=8,
        ),
    }
    for how, text in found.items():
        if text != wanted:
            same = next(i for i in range(_NUM_TOKENS) if text[i] != wanted[i])
            return WRONG, f"{how}: other text from token {same} on"
    return EQUAL, ""
