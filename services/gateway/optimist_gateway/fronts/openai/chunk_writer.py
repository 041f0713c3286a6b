"""Words the chunks of a streamed answer with choices."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.error import ApiError
from optimist_gateway.fronts.openai.dialect import ChoiceWriter, Dialect
from optimist_gateway.fronts.openai.errors import error_body
from optimist_gateway.fronts.openai.provenance import provenance
from optimist_gateway.fronts.openai.sse import DONE, event
from optimist_gateway.generation.generation import Generation

SYNTHETIC_FINGERPRINT = "synthetic-acceptance"
"""Says that drafts were accepted by chance, so that the text is meaningless."""
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for the text in a chunk that is written ahead; it is in no other part of it."""


class ChunkWriter:
    """An `EventWriter` for chunks, one with each event.

    What all chunks of a stream have in common is written once. Most of them say nothing but text:
    of these all that surrounds the text is.
    """

    __slots__ = (
        "_around_text",
        "_beginning",
        "_dialect",
        "_generation",
        "_has_only_text",
        "_header",
        "_is_continuous",
        "_with_tokens",
        "_with_usage",
        "_writers",
    )

    def __init__(self, generation: Generation, dialect: Dialect, model_name: str) -> None:
        """Begins the stream of a request; `dialect` words its choices."""
        self._generation, self._dialect = generation, dialect
        request = generation.request
        self._with_usage = request.include_usage
        self._is_continuous = request.continuous_usage
        self._with_tokens = request.return_token_ids
        self._has_only_text = not (self._is_continuous or self._with_tokens)
        self._header = answer_header(generation, dialect.chunk_object, model_name)
        self._beginning = b""
        self._writers: dict[int, ChoiceWriter] = {}
        self._around_text: list[tuple[bytes, bytes] | None] = [None] * generation.num_choices
        """What stands before and behind the text of a choice's chunk that says nothing else."""

    def piece(self, index: int, piece: Piece) -> bytes:
        """See `EventWriter.piece`."""
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
        """See `EventWriter.finish`."""
        if not self._with_usage:
            return DONE
        usage = final_usage(self._generation)
        return event(self._header | {"choices": [], "usage": usage}) + DONE

    def fail(self, error: ApiError) -> bytes:
        """See `EventWriter.fail`."""
        return event(error_body(error))

    def _begin(self) -> None:
        """Words what the following chunks begin with."""
        if self._with_usage:
            self._header["usage"] = _usage(self._generation) if self._is_continuous else None
        # It was not known before the first piece.
        self._header |= _fingerprint(self._generation)
        self._beginning = b"data: " + orjson.dumps(self._header)[:-1] + b',"choices":['

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._beginning + orjson.dumps(choice) + b"]}\n\n"

    def _choices(self, index: int, piece: Piece) -> list[dict[str, Any]]:
        """Returns the choices of chunks that tell of a piece."""
        choices = []
        writer = self._writers.get(index)
        if writer is None:
            writer = self._writers[index] = self._dialect.writer(self._generation.request)
            first = writer.first()
            if first is not None:
                choices.append({"index": index, **first})
            if self._has_only_text and writer.is_stateless:
                self._around_text[index] = self._around(index, writer.chunk)
        tells_tokens = self._with_tokens or piece.logprobs is not None or piece.segments is not None
        chunk = writer.chunk(piece, even_if_empty=bool(tells_tokens and piece.token_ids))
        if chunk is None:
            return choices
        if self._with_tokens:
            chunk |= token_fields([piece])
        if piece.segments is not None:
            chunk["provenance"] = provenance(piece.segments)
        return [*choices, {"index": index, **chunk}]

    def _around(
        self, index: int, word: Callable[..., dict[str, Any] | None]
    ) -> tuple[bytes, bytes]:
        """Returns a choice's chunk with nothing but text, without that text."""
        chunk = word(Piece(_MARK, [], 0, 0), even_if_empty=False) or {}
        before, _, after = self._event({"index": index, **chunk}).rpartition(orjson.dumps(_MARK))
        return before, after


def answer_header(generation: Generation, kind: str, model_name: str) -> dict[str, Any]:
    """Returns what an answer, or each chunk of one, begins with; `kind` is its `object`."""
    return {
        "id": generation.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": model_name,
        **_fingerprint(generation),
    }


def token_fields(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Returns what `return_token_ids` adds to a choice."""
    return {
        "token_ids": [token for piece in pieces for token in piece.token_ids],
        "num_accepted_tokens": sum(piece.num_accepted_tokens for piece in pieces),
        "predicted_text_length": sum(piece.predicted_text_length for piece in pieces),
    }


def final_usage(generation: Generation) -> dict[str, Any]:
    """Returns the account of an answer that is complete."""
    usage = _usage(generation)
    if generation.request.include_speculation:
        usage["speculation"] = generation.speculation().to_api()
    return usage


def _fingerprint(generation: Generation) -> dict[str, str]:
    """Returns what marks an answer as one of a benchmark."""
    return {"system_fingerprint": SYNTHETIC_FINGERPRINT} if generation.is_synthetic else {}


def _usage(generation: Generation) -> dict[str, Any]:
    return generation.usage().to_api(with_num_passes=generation.request.return_token_ids)
