"""Writes answers with choices: whole, or as a stream of chunks."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NotRequired, Protocol

import orjson
from typing_extensions import TypedDict

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.provenance import join_segments
from optimist_gateway.core.error import ApiError
from optimist_gateway.fronts.openai.answer_parts import (
    SegmentAnswer,
    UsageAnswer,
    provenance,
    speculation_answer,
    usage_answer,
)
from optimist_gateway.fronts.openai.answering import DONE, event
from optimist_gateway.fronts.openai.errors import error_body
from optimist_gateway.generation.generation import Generation

SYNTHETIC_FINGERPRINT = "synthetic-acceptance"
"""Says that drafts were accepted by chance, so that the text is meaningless."""
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""In place of the text in a chunk that is written ahead; it is in no other part of it."""


class ChoiceAnswer(TypedDict):
    """What all choices have."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: NotRequired[list[int]]
    num_accepted_tokens: NotRequired[int]
    predicted_text_length: NotRequired[int]
    provenance: NotRequired[list[SegmentAnswer]]


class ChoicesAnswer(TypedDict):
    """What all whole answers have but their choices."""

    id: str
    created: int
    model: str
    system_fingerprint: NotRequired[str]
    usage: UsageAnswer


class ChoiceWriter(Protocol):
    """Writes one choice of an answer: whole, or in chunks that are asked for in order."""

    @property
    def is_stateless(self) -> bool:
        """Whether a chunk depends on its piece alone."""
        ...

    def first(self) -> dict[str, Any] | None:
        """Returns what the choice of the first chunk holds, or None if there is no such chunk."""
        ...

    def chunk(self, piece: Piece, *, even_if_empty: bool) -> dict[str, Any] | None:
        """Returns what the choice of a chunk holds.

        Args:
            piece: What a step added.
            even_if_empty: Whether there is to be a chunk that says nothing; else None is returned
                for it.
        """
        ...

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Returns what the choice of a whole answer holds."""
        ...


class ChoicesWriter:
    """An `AnswerWriter` for answers with choices; as a stream, there is a chunk with each event.

    What all chunks of a stream have in common is written once. Most of them say nothing but text:
    of these all that surrounds the text is.
    """

    __slots__ = (
        "_around_text",
        "_beginning",
        "_generation",
        "_has_only_text",
        "_header",
        "_is_continuous",
        "_new_writer",
        "_pieces",
        "_with_tokens",
        "_with_usage",
        "_writers",
    )

    def __init__(
        self,
        generation: Generation,
        model_name: str,
        kinds: tuple[str, str],
        new_writer: Callable[[], ChoiceWriter],
    ) -> None:
        """Begins the answer to a request.

        Args:
            generation: The request.
            model_name: The model's name in the API.
            kinds: The `object` of a whole answer, and that of a chunk.
            new_writer: Returns what writes one choice.
        """
        self._generation, self._new_writer = generation, new_writer
        request = generation.request
        self._with_usage = request.include_usage
        self._is_continuous = request.continuous_usage
        self._with_tokens = request.return_token_ids
        self._has_only_text = not (self._is_continuous or self._with_tokens)
        self._header: dict[str, Any] = {
            "id": generation.request_id,
            "object": kinds[request.stream],
            "created": int(time.time()),
            "model": model_name,
        }
        self._beginning = b""
        self._writers: dict[int, ChoiceWriter] = {}
        self._around_text: list[tuple[bytes, bytes] | None] = [None] * generation.num_choices
        """What is before and after the text of a choice's chunk that says nothing else."""
        self._pieces: list[list[Piece]] = [[] for _ in range(generation.num_choices)]
        """Of an answer that is sent as a whole."""

    def collect(self, index: int, piece: Piece) -> None:
        """See `AnswerWriter.collect`."""
        self._pieces[index].append(piece)

    def whole(self) -> dict[str, Any]:
        """See `AnswerWriter.whole`."""
        chosen = enumerate(self._generation.chosen())
        return {
            **self._header,
            **fingerprint(self._generation),
            "choices": [
                self._whole_choice(number, self._pieces[index]) for number, index in chosen
            ],
            "usage": self._final_usage(),
        }

    def piece(self, index: int, piece: Piece) -> bytes:
        """See `AnswerWriter.piece`."""
        if (
            (around := self._around_text[index]) is not None
            and piece.finish_reason is None
            and piece.logprobs is None
            and piece.segments is None
        ):
            return around[0] + orjson.dumps(piece.text) + around[1] if piece.text else b""
        if self._is_continuous or not self._beginning:
            self._begin()
        return b"".join([self._event(choice) for choice in self._choices(index, piece)])

    def finish(self) -> bytes:
        """See `AnswerWriter.finish`."""
        if not self._with_usage:
            return DONE
        return event(self._header | {"choices": [], "usage": self._final_usage()}) + DONE

    def fail(self, error: ApiError) -> bytes:
        """See `AnswerWriter.fail`."""
        return event(error_body(error))

    def _begin(self) -> None:
        """Writes what the following chunks begin with."""
        if self._with_usage:
            self._header["usage"] = self._usage() if self._is_continuous else None
        # It was not known before the first piece.
        self._header |= fingerprint(self._generation)
        self._beginning = b"data: " + orjson.dumps(self._header)[:-1] + b',"choices":['

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._beginning + orjson.dumps(choice) + b"]}\n\n"

    def _choices(self, index: int, piece: Piece) -> list[dict[str, Any]]:
        """Returns the choices of the chunks of a piece."""
        choices = []
        writer = self._writers.get(index)
        if writer is None:
            writer = self._writers[index] = self._new_writer()
            first = writer.first()
            if first is not None:
                choices.append({"index": index, **first})
            if self._has_only_text and writer.is_stateless:
                self._around_text[index] = self._around(index, writer.chunk)
        has_details = self._with_tokens or piece.logprobs is not None or piece.segments is not None
        chunk = writer.chunk(piece, even_if_empty=bool(has_details and piece.token_ids))
        if chunk is None:
            return choices
        if self._with_tokens:
            chunk |= _token_fields([piece])
        if piece.segments is not None:
            chunk["provenance"] = provenance(piece.segments)
        return [*choices, {"index": index, **chunk}]

    def _around(
        self, index: int, write: Callable[..., dict[str, Any] | None]
    ) -> tuple[bytes, bytes]:
        """Returns a choice's chunk with nothing but text, without that text."""
        chunk = write(Piece(_MARK, [], 0, 0), even_if_empty=False) or {}
        before, _, after = self._event({"index": index, **chunk}).rpartition(orjson.dumps(_MARK))
        return before, after

    def _whole_choice(self, number: int, pieces: list[Piece]) -> dict[str, Any]:
        request = self._generation.request
        choice = {"index": number, **self._new_writer().whole(pieces)}
        if self._with_tokens:
            choice |= _token_fields(pieces)
        if request.include_provenance:
            segments = [segment for piece in pieces for segment in piece.segments or ()]
            choice["provenance"] = provenance(join_segments(segments))
        return choice

    def _usage(self) -> UsageAnswer:
        return usage_answer(self._generation.usage(), with_num_passes=self._with_tokens)

    def _final_usage(self) -> UsageAnswer:
        usage = self._usage()
        if self._generation.request.include_speculation:
            usage["speculation"] = speculation_answer(self._generation.speculation())
        return usage


def fingerprint(generation: Generation) -> dict[str, str]:
    """Returns what marks an answer as one of a benchmark."""
    return {"system_fingerprint": SYNTHETIC_FINGERPRINT} if generation.is_synthetic else {}


def _token_fields(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Returns what `return_token_ids` adds to a choice."""
    return {
        "token_ids": [token for piece in pieces for token in piece.token_ids],
        "num_accepted_tokens": sum(piece.num_accepted_tokens for piece in pieces),
        "predicted_text_length": sum(piece.predicted_text_length for piece in pieces),
    }


def reason_name(piece: Piece) -> str | None:
    """Returns why an answer ended, as the API says it; None while it goes on."""
    return piece.finish_reason.api_name if piece.finish_reason is not None else None
