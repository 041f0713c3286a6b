"""What is asked: the same requests for all engines."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import optimist_common
from optimist_common.errors import SetupError
from optimist_training.data.options import read_json_lines

WORKLOADS = ("rewrite", "rewrite-predicted", "chat")
OWN_SOURCES = Path(optimist_common.__file__).parent
"""Files to rewrite that every installation has."""
FILE_CHARS = (600, 2000)
"""Sizes of the files that are rewritten: prompts of 200 to 700 tokens."""

# Of several phrasings, with these a small model rewrites the most files: the text comes first.
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
    "Tell me a story about two neighbours who share a garden.",
    "Why do leaves change their colours in autumn?",
    "Give me three tips for somebody who begins to run.",
    "What is the difference between a letter and a diary?",
    "Write a poem about an old railway station.",
    "How does a bicycle stay upright?",
    "Describe a harbour early in the morning.",
    "What should somebody ask before they adopt a dog?",
)
_NUM_CHATS = 8
"""Chats of a round, however many requests are wanted, if there are not more streams."""


@dataclass(frozen=True)
class Prompt:
    """A chat request of one message."""

    text: str
    prediction: str | None = None
    """What the answer probably repeats."""
    seed: int | None = None
    """Sampled with it at temperature 1; None: greedy."""


def sent_workload(workload: str, *, takes_predictions: bool) -> str:
    """Returns the workload that an engine is sent: without predictions if it does not take them."""
    return "rewrite" if workload == "rewrite-predicted" and not takes_predictions else workload


def make_prompts(workload: str, files: str, num_prompts: int, num_streams: int = 1) -> list[Prompt]:
    """Returns the requests of a round: at least as many as streams, the others always the same.

    Args:
        workload: One of WORKLOADS.
        files: As for `read_files`.
        num_prompts: How many; of chats at most 8.
        num_streams: Requests at a time.

    Raises:
        SetupError: There are fewer files, or fewer requests than streams.
    """
    if workload == "chat":
        prompts = [Prompt(question) for question in _QUESTIONS]
        num_prompts = min(num_prompts, _NUM_CHATS)
    else:
        texts = read_files(files)
        if len(texts) < num_prompts:
            sizes = f"{FILE_CHARS[0]} to {FILE_CHARS[1]} characters"
            raise SetupError(
                f"--files: {len(texts)} files of {sizes}; --prompts wants {num_prompts}"
            )
        # Spread over them, so that few files are of many kinds too.
        chosen = [texts[each * len(texts) // num_prompts] for each in range(num_prompts)]
        chosen += [text for text in texts if text not in chosen]
        # All with one of the changes, then all with the other.
        prompts = [
            Prompt(
                f"{text}\n\n{_CHANGES[(number + turn) % len(_CHANGES)]}",
                text if workload == "rewrite-predicted" else None,
            )
            for turn in range(len(_CHANGES))
            for number, text in enumerate(chosen)
        ]
    if len(prompts) < num_streams:
        raise SetupError(f"--streams: {workload} has {len(prompts)} requests, not {num_streams}")
    return prompts[: max(num_prompts, num_streams)]


def read_files(path: str) -> list[str]:
    """Returns the texts of suitable size, in a fixed order.

    Args:
        path: A directory of text files, or one with a `pairs.jsonl` or that file itself: JSON
            lines, of which `before` is read. Empty for our own sources, of long ones the beginning.

    Raises:
        SetupError: There is no such directory or file, or a line has no text.
    """
    given = Path(path) if path else OWN_SOURCES
    pairs = given / "pairs.jsonl" if (given / "pairs.jsonl").is_file() else given
    if not pairs.exists():
        raise SetupError(f"--files: {path} does not exist")
    texts = _texts_of_pairs(pairs) if pairs.is_file() else _texts_of_directory(pairs)
    shortest, longest = FILE_CHARS
    if not path:
        # There must be enough of our own, however long they become.
        texts = (text if len(text) <= longest else _beginning(text, longest) for text in texts)
    return [text.rstrip() for text in texts if shortest <= len(text) <= longest]


def _beginning(text: str, longest: int) -> str:
    """Returns as much of a text as fits, up to an empty line."""
    return text[: max(text.rfind("\n\n", 0, longest), 0)]


def _texts_of_pairs(path: Path) -> Iterator[str]:
    for where, row in read_json_lines(path, "--files"):
        text = row.get("before")
        if not isinstance(text, str):
            raise SetupError(f"--files: {where} has no text 'before'")
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
