"""What is asked: the same requests for all engines."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import optimist_common
from optimist_common.errors import SetupError

WORKLOADS = ("rewrite", "rewrite-predicted", "chat")
OWN_SOURCES = Path(optimist_common.__file__).parent
"""Files to rewrite that every installation has."""
FILE_CHARS = (600, 2000)
"""Sizes of the files that are rewritten: prompts of 200 to 700 tokens."""

# Of several wordings, with these a small model rewrites the most files: the text comes first.
_CHANGES = (
    "Repeat the text above word for word, but fix the typos in it.",
    "Repeat the text above word for word, but rename `name` to `label`.",
)
_QUESTIONS = (
    "Tell me a short story about a lighthouse keeper who finds a letter.",
    "Why is the sky blue?",
    "Give me three reasons to learn to play an instrument.",
    "What is the difference between a river and a canal?",
    "Write a poem about the first snow of a winter.",
    "How does bread rise?",
    "Describe a market in a small town on a Saturday morning.",
    "What should somebody know before their first night in a tent?",
)


@dataclass(frozen=True)
class Prompt:
    """A chat request of one message."""

    text: str
    prediction: str | None = None
    """What the answer probably repeats."""


def sent_workload(workload: str, *, takes_predictions: bool) -> str:
    """Returns the workload that an engine is sent: without predictions if it does not take them."""
    return "rewrite" if workload == "rewrite-predicted" and not takes_predictions else workload


def make_prompts(workload: str, files: str, num_prompts: int) -> list[Prompt]:
    """Returns the requests of a workload.

    Args:
        workload: One of WORKLOADS.
        files: As for `read_files`.
        num_prompts: How many; there are no more chats than questions.

    Raises:
        SetupError: There are fewer files.
    """
    if workload == "chat":
        return [Prompt(question) for question in _QUESTIONS[:num_prompts]]
    texts = read_files(files)
    if len(texts) < num_prompts:
        sizes = f"{FILE_CHARS[0]} to {FILE_CHARS[1]} characters"
        raise SetupError(f"--files: {len(texts)} files of {sizes}; --prompts wants {num_prompts}")
    # Spread over them, so that few files are of many kinds too.
    chosen = [texts[each * len(texts) // num_prompts] for each in range(num_prompts)]
    return [
        Prompt(
            f"{text}\n\n{_CHANGES[number % len(_CHANGES)]}",
            text if workload == "rewrite-predicted" else None,
        )
        for number, text in enumerate(chosen)
    ]


def read_files(path: str) -> list[str]:
    """Returns the texts of suitable size, in a fixed order.

    Args:
        path: A directory of text files, or one with a `pairs.jsonl` or that file itself: JSON
            lines, of which `before` is read. Empty for our own sources.

    Raises:
        SetupError: There is no such directory or file, or a line has no text.
    """
    given = Path(path) if path else OWN_SOURCES
    pairs = given / "pairs.jsonl" if (given / "pairs.jsonl").is_file() else given
    if not pairs.exists():
        raise SetupError(f"--files: {path} does not exist")
    texts = _texts_of_pairs(pairs) if pairs.is_file() else _texts_of_directory(pairs)
    shortest, longest = FILE_CHARS
    return [text.rstrip() for text in texts if shortest <= len(text) <= longest]


def _texts_of_pairs(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            text = json.loads(line)["before"]
        except (ValueError, LookupError, TypeError):
            text = None
        if not isinstance(text, str):
            raise SetupError(f"--files: {path}, line {number} has no text 'before'")
        yield text


def _texts_of_directory(path: Path) -> Iterator[str]:
    for each in sorted(path.rglob("*")):
        if each.is_file() and each.stat().st_size <= 4 * FILE_CHARS[1]:
            try:
                yield each.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                # Not a text.
                continue


def digest(prompts: Sequence[Prompt]) -> str:
    """Returns a short name of prompts, by which two reports can be compared."""
    return hashlib.sha256(json.dumps([each.text for each in prompts]).encode()).hexdigest()[:16]
