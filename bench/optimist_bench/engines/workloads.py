"""What is asked: the same requests for all engines."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import optimist_common
from optimist_bench.harness.kinds import load_kinds
from optimist_common.errors import SetupError
from optimist_gateway.core.request import JsonContent
from optimist_training.data.options import read_json_lines

FREE = ("rewrite", "rewrite-predicted", "wrong-predicted", "chat", "edit-agent")
"""Workloads whose answers have any form."""
WORKLOADS = (*FREE, "forms", "tools")
SAMPLED = ("wrong-predicted", "chat")
"""At temperature 1; the others are greedy."""
OWN_SOURCES = Path(optimist_common.__file__).parent
"""Files to rewrite that every installation has."""
FILE_CHARS = (600, 2000)
"""Sizes of the files that are rewritten: prompts of 200 to 700 tokens."""

# Sent to engines whose API has no predictions.
_WITHOUT_PREDICTION = {"rewrite-predicted": "rewrite", "wrong-predicted": "chat"}
# Of several phrasings, with these a small model rewrites the most files: the text comes first.
_CHANGES = (
    "Repeat the text above word for word, but fix the typos in it.",
    "Repeat the text above word for word, but rename `name` to `label`.",
)
_NUM_PARTS = 4
"""Requests of an agent's conversation, each about the next part of its file."""
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
_SPREAD = 0.618034
"""The golden ratio's fraction: however many of its multiples are taken, they lie far apart."""


@dataclass(frozen=True)
class Prompt:
    """A chat request, or a conversation of several."""

    text: str
    prediction: str | None = None
    """What the answer is said to repeat."""
    seed: int | None = None
    """Sampled with it at temperature 1; None: greedy."""
    replies: tuple[tuple[str, str], ...] = ()
    """Of a conversation: what the assistant is taken to have answered, and what is said next."""
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    """JSON schema that the answer follows."""
    tools: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    """Functions of which the answer calls some."""

    def conversation(self) -> list[list[dict[str, str]]]:
        """Returns the messages of each request: all that was said so far."""
        messages = [{"role": "user", "content": self.text}]
        requests = [messages]
        for reply, text in self.replies:
            answered = {"role": "assistant", "content": reply}
            messages = [*messages, answered, {"role": "user", "content": text}]
            requests.append(messages)
        return requests


def sent_workload(workload: str, *, takes_predictions: bool) -> str:
    """Returns the workload that an engine is sent: without predictions if it does not take them."""
    return workload if takes_predictions else _WITHOUT_PREDICTION.get(workload, workload)


def make_prompts(workload: str, files: str, num_prompts: int, num_streams: int = 1) -> list[Prompt]:
    """Returns the requests of a round: at least as many as streams, the first always the same.

    Args:
        workload: One of WORKLOADS.
        files: As for `read_files`.
        num_prompts: How many.
        num_streams: Requests at a time.

    Raises:
        SetupError: There are fewer files, or fewer requests than streams.
    """
    wanted = max(num_prompts, num_streams)
    if workload == "chat":
        return [Prompt(_question(number), seed=number) for number in range(wanted)]
    if workload in ("forms", "tools"):
        return list(islice(cycle(_forms() if workload == "forms" else _calls()), wanted))
    texts = read_files(files)
    # Few files are of many kinds too.
    texts = [text for _, text in sorted(enumerate(texts), key=lambda each: each[0] * _SPREAD % 1)]
    if len(texts) < num_prompts:
        sizes = f"{FILE_CHARS[0]} to {FILE_CHARS[1]} characters"
        raise SetupError(f"--files: {len(texts)} files of {sizes}; --prompts wants {num_prompts}")
    if workload == "wrong-predicted":
        return [
            Prompt(_question(number), text, seed=number)
            for number, text in zip(range(wanted), cycle(texts), strict=False)
        ]
    # All with one of the changes, then all with the other.
    prompts = [
        _prompt(workload, text, (number + turn) % len(_CHANGES))
        for turn in range(len(_CHANGES))
        for number, text in enumerate(texts)
    ]
    if len(prompts) < num_streams:
        raise SetupError(f"--streams: {workload} has {len(prompts)} requests, not {num_streams}")
    return prompts[:wanted]


def _forms() -> Iterator[Prompt]:
    """Iterates over the documents that `bench forms` simulates."""
    for kind in load_kinds().values():
        content = kind.structure.content
        if isinstance(content, JsonContent) and "properties" in content.schema:
            text = f"{kind.prompt}\n\nGive the data above as JSON."
            yield Prompt(text, schema=content.schema)


def _calls() -> Iterator[Prompt]:
    """Iterates over the calls of functions that `bench forms` simulates."""
    for kind in load_kinds().values():
        if (use := kind.structure.tools) is not None:
            functions = (
                {"name": one.name, "parameters": one.parameters, "strict": one.is_strict}
                for one in use.functions
            )
            tools = [{"type": "function", "function": each} for each in functions]
            yield Prompt(kind.question, tools=tools)


def _question(number: int) -> str:
    return _QUESTIONS[number % len(_QUESTIONS)]


def _prompt(workload: str, text: str, change: int) -> Prompt:
    if workload != "edit-agent":
        prediction = text if workload == "rewrite-predicted" else None
        return Prompt(f"{text}\n\n{_CHANGES[change]}", prediction)
    parts = _parts(text)
    asked = [f"{part}\n\n{_CHANGES[change]}" for part in parts]
    # All engines are sent the same, and what a small model does wrong has no consequences.
    right = [part.replace("name", "label") if change else part for part in parts]
    return Prompt(asked[0], replies=tuple(zip(right, asked[1:], strict=False)))


def _parts(text: str) -> list[str]:
    """Returns about equal parts of a text, of whole lines; long lines make them fewer."""
    parts, start = [""] * _NUM_PARTS, 0
    for line in text.splitlines(keepends=True):
        parts[start * _NUM_PARTS // len(text)] += line
        start += len(line)
    return [part.strip("\n") for part in parts if part.strip()]


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
    text = json.dumps([asdict(each) for each in prompts])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
