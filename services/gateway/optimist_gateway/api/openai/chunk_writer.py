"""Writes answers with choices: whole, or as a stream of chunks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import orjson

from optimist_gateway.api.openai.answer_parts import (
    segment_answer,
    speculation_answer,
    usage_answer,
)
from optimist_gateway.api.openai.answering import DONE, event
from optimist_gateway.api.openai.errors import error_body
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.provenance import join_segments
from optimist_gateway.core.error import ApiError
from optimist_gateway.generation.generation import Generation

_THOUGHTS = "reasoning_content"
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""In place of the text in a chunk that is written ahead; it is in no other part of it."""


class ChoiceWriter:
    """Writes one choice of an answer: whole, or in chunks that are asked for in order."""

    content: str
    """The field of a chunk that has what it adds to the answer."""
    is_stateless = True
    """Whether a chunk depends on its piece alone, from now on."""

    def first(self) -> dict[str, Any] | None:
        """Returns what the choice of the first chunk holds, or None if there is no such chunk."""
        return None

    def choice(self, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        """Returns what a choice holds: of a chunk, or of an answer that is one piece."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class ChoicesWriter:
    """An `AnswerWriter` for answers with choices; as a stream, there is a chunk with each event.

    What all chunks of a stream have in common is written once. Most of them say nothing but text:
    of these all that surrounds the text is.
    """

    generation: Generation
    kinds: InitVar[tuple[str, str]]
    """The `object` of a whole answer, and that of a chunk."""
    new_writer: Callable[[], ChoiceWriter]
    """Returns what writes one choice."""
    _header: dict[str, Any] = field(init=False)
    _beginning: bytes = field(init=False, default=b"")
    """Of all chunks; they differ in their choice, and in the usage if they have one."""
    _writers: dict[int, ChoiceWriter] = field(init=False, default_factory=dict)
    _around_text: list[tuple[bytes, bytes] | None] = field(init=False)
    """What is before and after the text of a choice's chunk that says nothing else."""

    def __post_init__(self, kinds: tuple[str, str]) -> None:
        request = self.generation.request
        self._header = {
            "id": self.generation.request_id,
            "object": kinds[request.stream],
            "created": int(time.time()),
            "model": request.model,
        }
        self._around_text = [None] * request.num_choices

    def whole(self, pieces: Sequence[tuple[int, Piece]]) -> dict[str, Any]:
        """See `AnswerWriter.whole`."""
        own: list[list[Piece]] = [[] for _ in self._around_text]
        for index, piece in pieces:
            own[index].append(piece)
        choices = [self._whole_choice(index, some) for index, some in enumerate(own)]
        return {**self._header, "choices": choices, "usage": self._final_usage()}

    def _whole_choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text, reason = "".join(piece.text for piece in pieces), pieces[-1].finish_reason
        logprobs = None
        if any(piece.logprobs is not None for piece in pieces):
            logprobs = [token for piece in pieces for token in piece.logprobs or ()]
        joined = Piece(text, [], 0, 0, reason, logprobs)
        choice = self.new_writer().choice(joined, is_whole=True)
        return {"index": index, **choice, **self._details(pieces)}

    def piece(self, index: int, piece: Piece) -> bytes:
        """See `AnswerWriter.piece`."""
        if (
            (around := self._around_text[index]) is not None
            and piece.finish_reason is None
            and piece.logprobs is None
            and piece.segments is None
        ):
            return around[0] + orjson.dumps(piece.text) + around[1] if piece.text else b""
        if self.generation.request.continuous_usage or not self._beginning:
            self._begin()
        return b"".join([self._event(choice) for choice in self._choices(index, piece)])

    def finish(self) -> bytes:
        """See `AnswerWriter.finish`."""
        if not self.generation.request.include_usage:
            return DONE
        return event(self._header | {"choices": [], "usage": self._final_usage()}) + DONE

    def fail(self, error: ApiError) -> bytes:
        """See `AnswerWriter.fail`."""
        return event(error_body(error))

    def _begin(self) -> None:
        """Writes what the following chunks begin with."""
        request = self.generation.request
        if request.include_usage:
            self._header["usage"] = self._usage() if request.continuous_usage else None
        self._beginning = b"data: " + orjson.dumps(self._header)[:-1] + b',"choices":['

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._beginning + orjson.dumps(choice) + b"]}\n\n"

    def _choices(self, index: int, piece: Piece) -> list[dict[str, Any]]:
        """Returns the choices of the chunks of a piece."""
        request, choices = self.generation.request, []
        with_tokens = request.return_token_ids
        writer = self._writers.get(index)
        if writer is None:
            writer = self._writers[index] = self.new_writer()
            first = writer.first()
            if first is not None:
                choices.append({"index": index, **first})
        is_plain = writer.is_stateless and not (request.continuous_usage or with_tokens)
        if is_plain and self._around_text[index] is None:
            self._around_text[index] = self._around(index, writer)
        has_details = with_tokens or piece.logprobs is not None or piece.segments is not None
        chunk = writer.choice(piece, is_whole=False)
        says = chunk[writer.content] or piece.logprobs or piece.finish_reason is not None
        if not (says or (has_details and piece.token_ids)):
            return choices
        first, *others = _separated(chunk, writer.content)
        choices.append({"index": index, **first, **self._details([piece])})
        return choices + [{"index": index, **one, **self._details([])} for one in others]

    def _around(self, index: int, writer: ChoiceWriter) -> tuple[bytes, bytes]:
        """Returns a choice's chunk with nothing but text, without that text."""
        chunk = writer.choice(Piece(_MARK, [], 0, 0), is_whole=False)
        before, _, after = self._event({"index": index, **chunk}).rpartition(orjson.dumps(_MARK))
        return before, after

    def _details(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Returns what extensions add to the choice of some pieces."""
        request = self.generation.request
        details: dict[str, Any] = {}
        if request.return_token_ids:
            details["token_ids"] = [token for piece in pieces for token in piece.token_ids]
            details["num_accepted_tokens"] = sum(piece.num_accepted_tokens for piece in pieces)
            details["predicted_text_length"] = sum(piece.predicted_text_length for piece in pieces)
        if request.include_provenance:
            segments = [segment for piece in pieces for segment in piece.segments or ()]
            joined = segments if request.stream else join_segments(segments)
            details["provenance"] = [segment_answer(segment) for segment in joined]
        return details

    def _usage(self) -> dict[str, Any]:
        with_num_passes = self.generation.request.return_token_ids
        return usage_answer(self.generation.usage(), with_num_passes=with_num_passes)

    def _final_usage(self) -> dict[str, Any]:
        usage = self._usage()
        if self.generation.request.include_speculation:
            usage["speculation"] = speculation_answer(self.generation.usage())
        return usage


def _separated(chunk: dict[str, Any], content: str) -> list[dict[str, Any]]:
    """Returns a chunk, or several: what is thought, what is said, and why it ended.

    Some clients read nothing else from a chunk that has thoughts, or the reason.
    """
    said, reason = chunk[content], chunk["finish_reason"]
    parts = [said] if said else []
    if _THOUGHTS in said and len(said) > 1 and isinstance(said, dict):
        rest = {name: value for name, value in said.items() if name != _THOUGHTS}
        parts = [{_THOUGHTS: said[_THOUGHTS]}, rest]
    if reason is not None or not parts:
        parts.append(type(said)())
    chunks = [chunk | {content: one, "logprobs": None, "finish_reason": None} for one in parts]
    chunks[0]["logprobs"], chunks[-1]["finish_reason"] = chunk["logprobs"], reason
    return chunks
