"""The records of a request's log: one about its sources, then one for each step.

A log is JSON lines, so that it can be appended to, and one that is cut off is read up to the cut.
"""

import hashlib
import json
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from optimist_aligner import Draft, Sources, Vocabulary
from optimist_aligner.text.lines import line_starts, split_texts

FORMAT = 3
"""Number of the format; every header has it."""
MAX_LINE_CHARACTERS = 1000
"""Of a longer output line only the end is kept."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands in decoded text for bytes that are no whole character."""
_MAX_ID_CHARACTERS = 1000
_MAX_HEADER_BYTES = 32 * 1024 * 1024
# Texts are for people too, so only what must be is escaped.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def to_line(record: dict[str, Any]) -> bytes:
    """Returns a record as a line; halves of surrogate pairs become question marks."""
    return (_encode(record) + "\n").encode(errors="replace")


def end_record(reason: str) -> bytes:
    """Returns the record that ends a log."""
    return to_line({"end": reason})


def digest(sources: Sources) -> str:
    """Returns what says whether sources are the same."""
    content = hashlib.sha256(sources.token_ids.tobytes())
    content.update(str(sources.num_predicted).encode())
    return content.hexdigest()[:32]


def token_text(token_texts: Sequence[str], token_id: int) -> str:
    """Returns the text of a token.

    Part of a character (some of its bytes) and a token that the vocabulary lacks have none; their
    id is shown instead, in angle brackets.
    """
    if 0 <= token_id < len(token_texts):
        text = token_texts[token_id]
        if REPLACEMENT not in text:
            return text
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{token_id}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"


class OutputLines:
    """The lines of an output as it grows.

    Attributes:
        num_known: Output tokens taken or missed so far.
    """

    __slots__ = ("_line", "_number", "_vocabulary", "num_known")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._line = ""
        self._number: int | None = 1
        self.num_known = 0

    @property
    def prefix(self) -> str:
        """The line that is not complete, or the end of it."""
        if len(self._line) <= MAX_LINE_CHARACTERS:
            return self._line
        return "\N{HORIZONTAL ELLIPSIS}" + self._line[-MAX_LINE_CHARACTERS:]

    def take(self, token_ids: "array[int]", position: int) -> list[tuple[int | None, str]]:
        """Takes output tokens; returns the lines that they complete, with their numbers from 1 on.

        Where they do not come right after what was taken, the line begins anew, and lines have no
        numbers any more.
        """
        if position != self.num_known:
            self._line, self._number = "", None
        self.num_known = position + len(token_ids)
        texts, newlines = self._vocabulary.token_texts, self._vocabulary.newline_token_ids
        completed = []
        for token_id in token_ids:
            # One character more than is shown says that some are left out.
            self._line = (self._line + token_text(texts, token_id))[-MAX_LINE_CHARACTERS - 1 :]
            if token_id in newlines:
                completed.append((self._number, self.prefix))
                self._line = ""
                if self._number is not None:
                    self._number += 1
        return completed


class RequestRecord:
    """Writes what happens to one request.

    Attributes:
        num_steps: Steps so far; the number of the next one.
    """

    __slots__ = ("_output", "_replica", "_request_id", "_vocabulary", "num_steps")

    def __init__(
        self, request_id: str, replica: str, vocabulary: Vocabulary, num_steps: int = 0
    ) -> None:
        """Takes the steps that an earlier record of the same log has."""
        self._request_id = request_id[:_MAX_ID_CHARACTERS]
        self._replica = replica
        self._vocabulary = vocabulary
        self._output = OutputLines(vocabulary)
        self.num_steps = num_steps

    def header(self, sources: Sources, opened: str, max_bytes: int | None) -> bytes:
        """Returns the header; `opened` is the time, for people.

        Predicted lines beyond `max_bytes` are left out; None leaves out all about the predictions,
        for a log that has the same sources already.
        """
        record = {
            "optimist_request_log": FORMAT,
            "sources": digest(sources),
            "request_id": self._request_id,
            "replica": self._replica,
            "opened": opened,
        }
        if max_bytes is not None:
            num_prompt_tokens = len(sources.token_ids) - sources.num_predicted - 1
            record["num_prompt_tokens"] = max(num_prompt_tokens, 0)
            record["predictions"] = self._predictions(sources, min(max_bytes, _MAX_HEADER_BYTES))
        return to_line(record)

    def step(
        self,
        token_ids: "array[int]",
        num_known: int,
        draft: Draft | None,
        seconds: float,
        num_alignments: int,
    ) -> bytes:
        """Returns the record of the next step; see `RequestLogs.step`."""
        position = num_known - len(token_ids)
        completed = self._output.take(token_ids, position)
        record = {
            "step": self.num_steps,
            "replica": self._replica,
            "position": position,
            "token_ids": list(token_ids),
            "texts": self._texts(token_ids),
            "completed_lines": [{"number": number, "text": text} for number, text in completed],
            "line_prefix": self._output.prefix,
            "proposal": None if draft is None else self._proposal(draft),
            "num_alignments": num_alignments,
            "microseconds": round(max(seconds, 0.0) * 1e6, 1),
        }
        self.num_steps += 1
        return to_line(record)

    def _predictions(self, sources: Sources, max_bytes: int) -> list[dict[str, Any]]:
        predictions = []
        first = 0
        for prediction in split_texts(sources.token_ids[: sources.num_predicted]):
            starts = line_starts(prediction, self._vocabulary.newline_token_ids)
            lines = []
            for start, end in pairwise(starts):
                token_ids = prediction[start:end]
                text = "".join(self._texts(token_ids))
                # No id and no character takes more as JSON; encoding twice would take longer.
                max_bytes -= 64 + 12 * len(token_ids) + 6 * len(text)
                if max_bytes < 0:
                    break
                lines.append(
                    {"position": first + start, "token_ids": list(token_ids), "text": text}
                )
            num_tokens = len(prediction)
            predictions.append(
                {"num_tokens": num_tokens, "num_lines": len(starts) - 1, "lines": lines}
            )
            first += num_tokens
        return predictions

    def _proposal(self, draft: Draft) -> dict[str, Any]:
        return {
            "token_ids": list(draft.token_ids),
            "texts": self._texts(draft.token_ids),
            "parents": list(draft.parents),
            "positions": list(draft.positions),
            "values": [round(value, 4) for value in draft.values],
        }

    def _texts(self, token_ids: "array[int]") -> list[str]:
        return [token_text(self._vocabulary.token_texts, token_id) for token_id in token_ids]
