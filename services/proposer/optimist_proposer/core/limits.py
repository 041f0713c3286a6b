"""How large a request may be to be followed."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from optimist_aligner.text.sources import INT32
from optimist_aligner.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request; each is the setting of its name."""

    max_predictions: int
    max_prediction_tokens: int
    max_prediction_lines: int
    max_prediction_bytes: int
    max_alignment_ms: int


class LimitCheck:
    """Says which bound a request exceeds."""

    def __init__(self, limits: Limits, vocabulary: Vocabulary) -> None:
        self._limits, self._vocabulary = limits, vocabulary
        self._token_bytes = array(
            INT32, [len(text.encode("utf-8", "surrogatepass")) for text in vocabulary.token_texts]
        )

    def fault(self, predictions: Sequence["array[int]"], prompt: "array[int]") -> str | None:
        """Returns what is too large about an opening, naming its field, or None."""
        limits = self._limits
        field = "predicted_token_ids"
        num_tokens = sum(map(len, predictions))
        if len(predictions) > limits.max_predictions:
            return (
                f"num_predicted_tokens: {len(predictions)} predictions, more than "
                f"max_predictions ({limits.max_predictions})"
            )
        if num_tokens > limits.max_prediction_tokens:
            return (
                f"{field}: {num_tokens} tokens, more than max_prediction_tokens "
                f"({limits.max_prediction_tokens})"
            )
        for name, column in [*((field, one) for one in predictions), ("prompt_token_ids", prompt)]:
            unknown = self.unknown_token(column)
            if unknown is not None:
                return f"{name}: token {unknown} is not in the vocabulary of the tokenizer"
        num_bytes = sum(sum(map(self._token_bytes.__getitem__, one)) for one in predictions)
        if num_bytes > limits.max_prediction_bytes:
            return (
                f"{field}: {num_bytes} bytes of text, more than max_prediction_bytes "
                f"({limits.max_prediction_bytes})"
            )
        ends_line = self._vocabulary.newline_token_ids.__contains__
        num_lines = sum(sum(map(ends_line, one)) for one in predictions)
        if num_lines > limits.max_prediction_lines:
            return (
                f"{field}: {num_lines} lines, more than max_prediction_lines "
                f"({limits.max_prediction_lines})"
            )
        return None

    def unknown_token(self, token_ids: "array[int]") -> int | None:
        """Returns a token that the vocabulary lacks, or None."""
        if not token_ids:
            return None
        low, high = min(token_ids), max(token_ids)
        if low < 0:
            return low
        return high if high >= len(self._token_bytes) else None

    def delay(self, spent_seconds: float, num_known: int) -> str | None:
        """Returns that a request used up its time, or None.

        Args:
            spent_seconds: CPU time spent on it so far.
            num_known: Its output tokens; each thousand of them has the time that the start has.
        """
        spent_ms = spent_seconds * 1000
        limit = self._limits.max_alignment_ms
        if spent_ms <= limit * (1 + num_known / 1000):
            return None
        return (
            f"predicted_token_ids: {spent_ms:.0f} ms were spent on following for {num_known} "
            f"tokens, more than max_alignment_ms ({limit}) at first and for each 1000 tokens"
        )
