"""What following a request brings, and whether steps wait for windows.

By its gain a request rests or not, and its tokens are sent seldom or at once. A gain is what drafts
from windows bring per pass, in accepted tokens of 1/1024, averaged over the last passes. All of it
is integers, so that a replay has the same.
"""

import numpy as np

from optimist_scheduler.core.base.values import BoolArray, Int32Array
from optimist_scheduler.core.windows.window import Window

TOKEN = 1024
"""A gain of one token per pass."""
NOT_FOLLOWED = -1
"""Gain of a request that no proposer follows."""
LEAST_GAIN = 64
"""A request that gains less rests until a window promises a token."""
WAIT_NS = 1_200_000
"""How long a worker has nothing to run if the next plan is made from a result, or waits for a
window."""
FIRST_GAIN = 256
"""What is expected of a request that wakes."""
FIRST_PREDICTED_GAIN = 1024
"""What is expected of the first requests with a prediction."""
MOST_FIRST_GAIN = 4096
"""What is expected at most of one that has drafted nothing."""
MORE_SHIFT = 2
"""A pass counts 1/4 of the average if it gains more than that."""
LESS_SHIFT = 3
"""And 1/8 if it gains less: what never holds is soon waited for no more."""
UNTRIED_SHIFT = 2
"""One in which a row had no chance to draft from its window counts a quarter of that."""
COMMON_SHIFT = 5
"""A pass counts 1/32 of what requests with predictions gain of late."""
LEAST_GROUP = 8
"""New tokens of a resting request that are sent to proposers together."""
GROUP_SHIFT = 3
"""They grow to 1/8 of the output: so much of it goes by at most before it is looked at."""
MOST_GROUP = 128
ROWS_PER_INTERVAL = 8
"""Of so many requests that rest one has something to send at each result."""
MOST_ROWS_PER_SENT = 4
"""A message is worth it if one row in so many has new tokens to send that is awake."""
MOST_PREDICTED_GROUP = 16
"""The same with a prediction, which is likely to be right again."""

LOOKED_UP_SHARE = 7 / 8
"""Of the tokens of a window, what a lookup finds in the prediction: of real edits, 7.3 of 8.0."""


def find_first_gain(num_predicted_tokens: int, predicted_gain: int, *, is_followed: bool) -> int:
    """Returns the gain that a request begins with; without a prediction it rests at first."""
    if not is_followed:
        return NOT_FOLLOWED
    return predicted_gain if num_predicted_tokens else 0


def rests(gain: int) -> bool:
    """Returns whether a request is followed and rests."""
    return NOT_FOLLOWED < gain < LEAST_GAIN


def average(gains: Int32Array, accepted: Int32Array, is_untried: BoolArray) -> Int32Array:
    """Returns gains after one more pass [num_rows]."""
    change = accepted * np.int32(TOKEN) - gains
    shift = np.where(change < 0, np.int32(LESS_SHIFT), np.int32(MORE_SHIFT))
    change >>= shift + UNTRIED_SHIFT * is_untried.astype(np.int32)
    return gains + change * (gains >= LEAST_GAIN)


class PredictedGain:
    """What requests with predictions gain of late: by it, those that come are waited for or not."""

    def __init__(self) -> None:
        self._gain = FIRST_PREDICTED_GAIN

    def observe(self, accepted: Int32Array) -> None:
        """Takes the drafts of windows that a pass accepted, of its rows with predictions."""
        if len(accepted):
            mean = int(accepted.sum()) * TOKEN // len(accepted)
            self._gain += (min(mean, 16 * TOKEN) - self._gain) >> COMMON_SHIFT

    def find_first(self) -> int:
        """Returns what is expected of one that comes."""
        return min(self._gain, MOST_FIRST_GAIN)


def find_wait_gain(pass_ns: float) -> int:
    """Returns from which gain on a step may wait for windows: what a wait costs."""
    share = min(WAIT_NS / pass_ns, 0.5)
    return max(round(TOKEN * share / (1 - share)), LEAST_GAIN)


def find_interval(num_rows: int) -> int:
    """Returns at every which result tokens of requests that rest are sent: seldom if many run."""
    return min(max(num_rows // ROWS_PER_INTERVAL, 1), LEAST_GROUP)


def is_due(
    gains: Int32Array,
    num_predicted_tokens: Int32Array,
    num_output_tokens: Int32Array,
    num_unsent_tokens: Int32Array,
    *,
    wait_gain: int,
    is_turn: bool,
) -> BoolArray:
    """Returns of which requests proposers are sent the new tokens now [num_rows].

    Those of a request that rests are sent seldom, and together with others': a message costs more
    than what it says.
    """
    due: BoolArray = gains >= LEAST_GAIN
    if not is_turn:
        is_worth = np.count_nonzero(due) * MOST_ROWS_PER_SENT >= len(gains)
        return due if is_worth else gains >= wait_gain
    most = np.where(num_predicted_tokens > 0, MOST_PREDICTED_GROUP, MOST_GROUP)
    # numpy's `clip` takes several times as long.
    groups = np.minimum(np.maximum(num_output_tokens >> GROUP_SHIFT, LEAST_GROUP), most)
    due |= (num_unsent_tokens >= groups) & (gains > NOT_FOLLOWED)
    return due


def wakes(window: Window, scale: float) -> bool:
    """Returns whether a window promises a token."""
    if not window.has_values:
        return window.num_nodes > 0
    # A node's value is its chance, and of those side by side one comes at most.
    chances = np.power(window.values, np.float32(max(scale, 1.0))) * np.float32(TOKEN)
    return int(chances.astype(np.int64).sum()) >= TOKEN
