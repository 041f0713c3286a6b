"""How fast requests go, as their results have it: passes, tokens of a pass, lengths of answers."""

import numpy as np

from optimist_scheduler.core.base.values import FloatArray, Int32Array

FIRST_ANSWER_TOKENS = 256
"""How long an answer is taken to be that may be longer, before any has ended."""
PASS_MEMORY, ANSWER_MEMORY = 7 / 8, 7 / 8
"""What is left of the weight of a pass or an answer after the next one."""
FIRST_SLOWNESS = 1.3
"""How much longer passes take beside the other services than when they were timed alone at start,
before any was observed."""
MOST_SLOWNESS = 4.0
"""A pass counts as at most so many times what it was expected to take, as in the cost curve."""
_MOST_BITS = 33


class Pace:
    """Exponentially weighted means of what passes did and of how long answers were.

    Answers are of a kind by the power of two of the most that they may have: who allows 16 tokens
    mostly gets them, and who allows thousands mostly does not.
    """

    def __init__(self) -> None:
        self._num_rows = self._num_emitted = self._num_fed = 0.0
        self._taken_ns = self._expected_ns = 0.0
        self._lengths: dict[int, tuple[float, float]] = {}
        self._means: FloatArray | None = None

    @property
    def tokens_per_row(self) -> float:
        """Tokens that a row gets in a pass, at least 1."""
        return max(self._num_emitted / self._num_rows, 1.0) if self._num_rows else 1.0

    @property
    def fed_per_row(self) -> float:
        """Tokens that a pass is fed for such a row, its drafts included."""
        return max(self._num_fed / self._num_rows, 1.0) if self._num_rows else 1.0

    @property
    def slowness(self) -> float:
        """Time from one pass to the next over what the pass was expected to take."""
        return self._taken_ns / self._expected_ns if self._expected_ns else FIRST_SLOWNESS

    def observe(
        self, num_rows: int, num_emitted: int, num_drafted: int, taken_ns: float, expected_ns: float
    ) -> None:
        """Takes a pass."""
        self._num_rows = self._num_rows * PASS_MEMORY + num_rows
        self._num_emitted = self._num_emitted * PASS_MEMORY + num_emitted
        self._num_fed = self._num_fed * PASS_MEMORY + num_rows + num_drafted
        taken_ns = min(taken_ns, MOST_SLOWNESS * expected_ns)
        self._taken_ns = self._taken_ns * PASS_MEMORY + taken_ns
        self._expected_ns = self._expected_ns * PASS_MEMORY + expected_ns

    @property
    def is_known(self) -> bool:
        """Whether any pass was observed."""
        return self._num_rows > 0

    def note_answer(self, num_tokens: int, most: int) -> None:
        """Takes an answer that has ended, which could have had `most` tokens."""
        for key in (most.bit_length(), 0):
            weight, total = self._lengths.get(key, (0.0, 0.0))
            self._lengths[key] = weight * ANSWER_MEMORY + 1, total * ANSWER_MEMORY + num_tokens
        self._means = None

    def _find_means(self) -> FloatArray:
        """Returns the mean length of answers by the bit length of the most that they may have."""
        if self._means is None:
            # Without any of its kind, it is as all of them.
            weight, total = self._lengths.get(0, (1.0, float(FIRST_ANSWER_TOKENS)))
            self._means = np.full(_MOST_BITS, total / weight)
            for key, (weight, total) in self._lengths.items():
                self._means[key] = total / weight
        return self._means

    def expect_more(self, num_tokens: Int32Array, most: Int32Array) -> FloatArray:
        """Returns how many more tokens answers probably get, at least 1 each [num_answers].

        One that is longer than most of its kind is taken to get as many again.
        """
        # Of whole numbers the exponent is the bit length.
        mean = np.maximum(np.minimum(self._find_means()[np.frexp(most)[1]], most), 1.0)
        more = np.where(num_tokens < mean, mean - num_tokens, mean)
        expected: FloatArray = np.maximum(np.minimum(more, most - num_tokens), 1.0)
        return expected
