"""Reads the log that a proposer or an engine has written of a request."""

import re
from collections.abc import Iterator
from typing import Annotated, BinaryIO, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

FORMAT = 3
MAX_LINE_BYTES = 64 * 1024 * 1024
_FRONT = re.compile(rb'\{"optimist_request_log": (\d{1,9}),')

NO_PARENT = -1
NO_POSITION = -1
"""Of a node that was read neither from a prediction nor from the prompt."""

Count = Annotated[int, Field(ge=0)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LogError(ValueError):
    """The file is no such log; the text says why."""


class StepError(LookupError):
    """The log lacks the step."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class Proposal(_Record):
    """How the output was expected to go on: a tree, the likeliest nodes first."""

    token_ids: list[int]
    texts: list[str]
    parents: list[int]
    """Node that each comes after, one before it; NO_PARENT for none."""
    positions: list[int]
    """From 0 on in the predictions; below NO_POSITION in the prompt, whose last token has -2."""
    values: list[Measure]

    @model_validator(mode="after")
    def _check(self) -> Self:
        lists = self.texts, self.parents, self.positions, self.values
        if any(len(each) != len(self.token_ids) for each in lists):
            raise ValueError("lists of different lengths")
        if any(not NO_PARENT <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError("a node before its parent")
        return self

    def chains(self) -> list[list[int]]:
        """Returns the likeliest path and then its branches, each as nodes that follow each other.

        Without nodes there is an empty path.
        """
        first_children: dict[int, int] = {}
        for node, parent in enumerate(self.parents):
            first_children.setdefault(parent, node)
        chains: list[list[int]] = []
        for node, parent in enumerate(self.parents):
            if node and first_children[parent] == node:
                continue
            chain = [node]
            while chain[-1] in first_children:
                chain.append(first_children[chain[-1]])
            chains.append(chain)
        return chains or [[]]

    def text(self, nodes: list[int]) -> str:
        """Returns the text of nodes that follow each other."""
        return "".join(self.texts[node] for node in nodes)


class PredictedLine(_Record):
    """A line of a prediction."""

    position: int
    """Of its first token, counted through all predictions."""
    token_ids: list[int]
    text: str


class Prediction(_Record):
    """An expected text."""

    num_tokens: Count
    num_lines: Count
    lines: list[PredictedLine]
    """The first of its lines; the log's bound may have left out the others."""


class Header(_Record):
    """A replica began to write, or went on."""

    optimist_request_log: Literal[3]
    sources: str
    request_id: str
    replica: str
    opened: str
    num_prompt_tokens: Count | None = None
    predictions: list[Prediction] | None = None
    """None where an earlier header of the log with the same `sources` has them."""


class OutputLine(_Record):
    """A line of the output."""

    number: int | None
    """From 1 on; None where the log lacks tokens before it."""
    text: str


class Step(_Record):
    """New output tokens, and what was proposed after them."""

    step: int
    replica: str
    position: Count
    """Output position of the first new token."""
    token_ids: list[int]
    texts: list[str]
    completed_lines: list[OutputLine]
    line_prefix: str
    """The output's line that is not complete."""
    proposal: Proposal | None
    """None if what was proposed before holds still."""
    num_alignments: Count
    """How often the position in the predictions was searched for so far."""
    microseconds: Measure

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.texts) != len(self.token_ids):
            raise ValueError("lists of different lengths")
        return self


class End(_Record):
    """A replica wrote no more."""

    end: str


class Damage(_Record):
    """A line that is not whole: a process ended, or the disk was full."""

    damaged_line: int


Record = Header | Step | End | Damage
_WRITTEN: TypeAdapter[Header | Step | End] = TypeAdapter(Header | Step | End)


def read_log(file: BinaryIO) -> Iterator[Record]:
    """Iterates over the records of a log; raises LogError if it is none."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise LogError(f"line {number} has more than {MAX_LINE_BYTES} bytes")
        if number == 1:
            _check_front(line)
        if line == b"\n":
            continue
        try:
            yield _WRITTEN.validate_json(line)
        except ValidationError:
            yield Damage(damaged_line=number)
    if not number:
        raise LogError("it is empty")


def _check_front(line: bytes) -> None:
    front = _FRONT.match(line)
    if front is None:
        raise LogError("it does not begin as one")
    if int(front[1]) != FORMAT:
        raise LogError(f"its format is {int(front[1])}, this version reads {FORMAT}")
