"""How many tokens each row drafts: those that raise the tokens per time of the whole pass."""

from collections.abc import Sequence

import numpy as np

from optimist_aligner.cost import CostCurve

MAX_DRAFTS = 512
"""Of a pass. Verifying makes some float32 copies of [drafts, vocabulary], for which vLLM reserves
memory as for one draft a row; and graphs are captured for up to as many tokens."""
_LEAST_REACH = 16
"""Drafts that are tried before it is known what they cost."""
_MIN_GAIN = 1.02
"""Drafts have to raise the tokens per time by this factor."""
_FIRST_LEAST_VALUE = 0.02
_LEAST_VALUES = 0.002, 0.5
_SPAN = 16
"""Passes that rates are averaged over."""


class DraftWidths:
    """What passes cost and bring, and what is drafted for that.

    A pass emits one token per row and as many more in the mean as the chances of its drafts add up
    to. The chances of a row fall from draft to draft, so the best drafts of any number are those of
    the highest chances, whichever rows they belong to. A pass has at most twice the tokens of the
    largest one so far, so that no guess of its time is far off.

    Attributes:
        least_value: Chance below which a draft is not worth its time in the next pass.
    """

    def __init__(self) -> None:
        self._curve = CostCurve()
        self._tokens_per_ns = 0.0
        self._look_ns = 0.0
        self._most_tokens = 0
        self.least_value = _FIRST_LEAST_VALUE

    @property
    def price(self) -> float:
        """Tokens that are emitted in the time that it takes to look for drafts for one row."""
        return self._tokens_per_ns * self._look_ns

    def observe_pass(
        self, num_tokens: int, num_drafts: int, num_rows: int, num_emitted: int, pass_ns: int
    ) -> None:
        """Learns from a pass.

        One that computed prompts says nothing of what drafts cost: they need logits, and take
        several times as long as as many tokens of a prompt.

        Args:
            num_tokens: Tokens that it computed, drafts included.
            num_drafts: Drafts among them.
            num_rows: Rows that emitted tokens.
            num_emitted: Tokens that it brought.
            pass_ns: Nanoseconds it took.
        """
        if num_tokens - num_drafts == num_rows:
            self._curve.observe(num_tokens, pass_ns)
            self._most_tokens = max(self._most_tokens, num_tokens)
        if num_emitted and pass_ns > 0:
            rate = num_emitted / pass_ns
            self._tokens_per_ns += (rate - self._tokens_per_ns) / (
                _SPAN if self._tokens_per_ns else 1
            )

    def observe_look(self, look_ns: int) -> None:
        """Learns how many nanoseconds a look for drafts took."""
        self._look_ns += (look_ns - self._look_ns) / (_SPAN if self._look_ns else 1)

    def choose(self, values: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        """Returns how many drafts each row gets in the next pass [num_paths].

        Args:
            values: Chances of the drafts of each row that has some, falling [num_paths][num_nodes].
            num_rows: Rows that emit a token in the next pass, whether they draft or not.
        """
        if not values:
            return []
        flat = np.array([value for each in values for value in each], np.float64)
        rows = np.repeat(np.arange(len(values)), [len(each) for each in values])
        most = min(MAX_DRAFTS, max(2 * self._most_tokens - num_rows, _LEAST_REACH))
        # Stable: of equal chances of a row the earlier draft comes first.
        order = np.argsort(-flat, kind="stable")[:most]
        emitted = num_rows + np.concatenate(([0.0], np.cumsum(flat[order])))
        rates = emitted / self._curve.cost(num_rows + np.arange(len(order) + 1))
        best = int(np.argmax(rates))
        marginal = np.diff(self._curve.cost(num_rows + best + np.array([0, 8])))[0] / 8
        # Half of it, since the next pass differs.
        self.least_value = float(np.clip(rates[best] * marginal / 2, *_LEAST_VALUES))
        if rates[best] < _MIN_GAIN * rates[0]:
            best = 0
        widths: list[int] = np.bincount(rows[order[:best]], minlength=len(values)).tolist()
        return widths
