"""Reads the log that a proposer has written of a request."""

from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

FORMAT = 2
MAX_LINE_BYTES = 64 * 1024 * 1024
_MAGIC = b"---\noptimist_request_log: "
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Count = Annotated[int, Field(ge=0)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LogError(ValueError):
    """The file is no such log; the text says why."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class Tokens(_Document):
    """Tokens with their text."""

    token_ids: list[int]
    text: str
    lengths: list[Count]
    """Characters of the text that are each token's [num_tokens]."""

    def texts(self) -> list[str]:
        """Returns the text of each token [num_tokens]."""
        texts, start = [], 0
        for length in self.lengths[: len(self.token_ids)]:
            texts.append(self.text[start : start + length])
            start += length
        return texts + [""] * (len(self.token_ids) - len(texts))


NO_POSITION = -1
"""Of a node that was read neither from a prediction nor from the prompt."""


class Chain(Tokens):
    """Nodes of a tree that come one behind the other."""

    positions: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    """Positions as runs of first and length, see `node_positions`; NO_POSITION stays the same."""
    values: list[Measure]
    behind: int = -1
    """Node that the first one comes behind, counted in the order of the log; -1 for none."""

    def node_positions(self) -> list[int]:
        """Returns the position of each node [num_nodes].

        From 0 on in the predictions; below NO_POSITION in the prompt, whose last token has -2.
        """
        positions: list[int] = []
        for first, length in self.positions:
            # No more than there are nodes, whatever a log says.
            length = max(0, min(length, len(self.token_ids) - len(positions)))
            is_run = first != NO_POSITION
            positions.extend(range(first, first + length) if is_run else [NO_POSITION] * length)
        return positions + [NO_POSITION] * (len(self.token_ids) - len(positions))


class Place(_Document):
    """A line of a prediction."""

    prediction: int
    line: int


class Proposal(_Document):
    """How the output was expected to go on."""

    place: Place | None
    path: Chain
    branches: list[Chain]

    @property
    def chains(self) -> list[Chain]:
        """The likeliest path, then the branches."""
        return [self.path, *self.branches]


class PredictedLine(_Document):
    """A line of a prediction."""

    number: int
    position: int
    """Of its first token, counted through all predictions."""


class Prediction(_Document):
    """An expected text."""

    num_tokens: Count
    num_lines: Count
    lines: list[PredictedLine]
    """The first of its lines; the log's bound may have left out the others."""


class Header(_Document):
    """A replica began to write, or went on."""

    optimist_request_log: int
    sources: str
    request_id: str
    replica: str
    opened: str
    num_prompt_tokens: Count | None = None
    predictions: list[Prediction] | None = None
    """None where an earlier header of the log with the same `sources` has them."""


class Step(_Document):
    """New output tokens, and what was proposed behind them."""

    step: int
    replica: str
    position: Count
    """Output position of the first new token."""
    output: Tokens
    line_prefix: str
    proposal: Proposal | None
    """None if what was proposed before holds still."""
    num_alignments: Count
    """How often the position in the predictions was searched for so far."""
    microseconds: Measure


class End(_Document):
    """A replica wrote no more."""

    end: str


class Damage(_Document):
    """A document that is not whole: a process ended, or the disk was full."""

    line: int
    """Line of the file where it begins."""


Document = Header | Step | End | Damage


def read_log(file: BinaryIO) -> Iterator[Document]:
    """Iterates over the documents of a log; raises LogError if it is none."""
    front = file.read(len(_MAGIC))
    if not front:
        raise LogError("it is empty")
    if not _MAGIC.startswith(front):
        raise LogError("it does not begin as one")
    file.seek(0)
    for number, lines, is_whole in _documents(file):
        found = _parse(b"".join(lines)) if is_whole else None
        if isinstance(found, Header) and found.optimist_request_log != FORMAT:
            raise LogError(
                f"its format is {found.optimist_request_log}, this version reads {FORMAT}"
            )
        yield Damage(line=number) if found is None else found


def _documents(file: BinaryIO) -> Iterator[tuple[int, list[bytes], bool]]:
    """Iterates over documents: line where each begins, its lines, and whether it has an end."""
    start, lines = 0, list[bytes]()
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise LogError(f"line {number} has more than {MAX_LINE_BYTES} bytes")
        if line in (b"---\n", b"...\n"):
            if lines:
                yield start, lines, line == b"...\n"
            start, lines = number, []
        if line != b"...\n" and (lines or line != b"\n"):
            lines.append(line)
    if lines:
        yield start, lines, False


def _parse(content: bytes) -> Document | None:
    try:
        values = yaml.load(content, Loader=_LOADER)  # noqa: S506 (it is a safe loader)
        if not isinstance(values, dict):
            return None
        for kind, name in ((Header, "optimist_request_log"), (Step, "step"), (End, "end")):
            if name in values:
                return kind.model_validate(values)
    except (yaml.YAMLError, ValidationError, ValueError, RecursionError):
        return None
    return None
