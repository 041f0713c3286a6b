"""Examples of right and wrong candidates, from simulated requests, to fit weights to.

At the beginning of every pass the candidates for the next token are an example, with those that
are right marked. Each right one is followed as long as it is right; every step of that is an
example of its own, in which it competes with the others that were right until then.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from optimist_proposer.core.auto.candidates import (
    NO_STOP,
    Candidate,
    Sight,
    kind_features,
    none_features,
)
from optimist_proposer.core.auto.follower import AutoFollower
from optimist_proposer.core.auto.layout import (
    BLOCKS,
    LENGTH,
    MOST_LENGTH,
    MOST_LOGIT,
    NUM_CLASSES,
    NUM_LENGTHS,
    NUM_RUNS,
    NUM_STEPS,
    NUM_WEIGHTS,
    OWN,
    PREDICTED,
    SOURCE,
    STEP,
)

WIDTH = 10
"""Most features of a row."""
NO_FEATURE = NUM_WEIGHTS
MOST_STEPS_FOLLOWED = 70

_START = {name: block.start for name, block in BLOCKS.items()}


class Examples:
    """Groups of rows; in each group at most one token is right.

    Attributes:
        features: Rows, filled up with NO_FEATURE [num_rows, WIDTH].
        is_right: Whether a row's token is the right one [num_rows].
        bounds: First row of each group, and the end of the last [num_groups + 1].
        none_features: Of none being right [num_groups, 4].
        logits: Logit of the first node, of continuations [num_rows].
        kinds: [num_rows]
    """

    def __init__(self) -> None:
        self._features: list[tuple[int, ...]] = []
        self._none: list[tuple[int, ...]] = []
        self._right = bytearray()
        self._bounds = [0]
        self._logits: list[float] = []
        self._kinds = bytearray()

    def add_row(
        self, features: tuple[int, ...], is_right: bool, logit: float = 0.0, kind: int = 0
    ) -> None:
        """Adds a row to the group that the next `end_group` ends."""
        self._features.append(features + (NO_FEATURE,) * (WIDTH - len(features)))
        self._right.append(is_right)
        self._logits.append(logit)
        self._kinds.append(kind)

    def end_group(self, none: tuple[int, ...] = (NO_FEATURE,) * 4) -> None:
        """Ends a group, with the features of none of its rows being right."""
        self._bounds.append(len(self._features))
        self._none.append(none)

    def pack(self) -> None:
        """Makes arrays of what was added."""
        self.features: npt.NDArray[np.int32] = np.array(self._features, np.int32).reshape(-1, WIDTH)
        self.none_features: npt.NDArray[np.int32] = np.array(self._none, np.int32).reshape(-1, 4)
        self.is_right = np.frombuffer(bytes(self._right), np.bool_)
        self.bounds = np.array(self._bounds, np.int64)
        self.logits = np.array(self._logits)
        self.kinds = np.frombuffer(bytes(self._kinds), np.uint8).astype(np.int64)
        self._features, self._none, self._logits = [], [], []


class Follow:
    """A candidate that was right so far."""

    def __init__(self, candidate: Candidate, logit: float, is_cursor: bool) -> None:
        self.kind, self.logit = candidate.kind, min(logit, MOST_LOGIT)
        self.length = candidate.length if candidate.kind in (PREDICTED, OWN) else 0
        self.first, self.stop, self.resume = candidate.place, candidate.stop, candidate.resume
        self.is_cursor = is_cursor

    def replace(self, place: int, step: int, stop: int, resume: int) -> "Follow":
        """Returns the same going on at a place, `step` nodes behind the output."""
        other = Follow.__new__(Follow)
        other.kind, other.logit, other.length = self.kind, self.logit, self.length
        other.first, other.stop, other.resume = place - step, stop, resume
        other.is_cursor = False
        return other


def collect_pass(
    follower: AutoFollower,
    truth: Sequence[int],
    position: int,
    logits: Sequence[float],
    roots: Examples,
    steps: Examples,
    min_value: float,
) -> None:
    """Adds the examples of one pass.

    Args:
        follower: Has observed the truth up to `position`.
        truth: Tokens.
        position: Of the next token.
        logits: The weights so far.
        roots: Examples of first nodes.
        steps: Examples of nodes behind them.
        min_value: Least value of a node in this pass.
    """
    sight = follower.look()
    shared = kind_features(sight)
    none = none_features(sight)
    none_logit = sum(logits[feature] for feature in none)
    right: list[Follow] = []
    for each in follower.find_candidates(sight, min_value):
        features = (*each.features, *shared[each.kind])
        is_right = each.token_id == truth[position]
        roots.add_row(features, is_right)
        if is_right and each.place >= 0:
            logit = sum(logits[feature] for feature in features) - none_logit
            alignment = sight.alignment
            is_cursor = alignment.pending is None and alignment.run > 0
            right.append(Follow(each, logit, is_cursor and each.place == alignment.place))
    roots.end_group(none)
    end = min(len(truth) - position, MOST_STEPS_FOLLOWED)
    for step in range(1, end):
        rows = list(_steps(sight, right, truth[position + step - 1], step))
        if not rows:
            return
        for token_id, features, follow in rows:
            is_right = token_id == truth[position + step]
            steps.add_row(features, is_right, follow.logit, follow.kind)
        steps.end_group()
        right = [follow for token_id, _, follow in rows if token_id == truth[position + step]]


def _steps(
    sight: Sight, follows: list[Follow], last: int, step: int
) -> list[tuple[int, tuple[int, ...], Follow]]:
    """Returns what comes next behind candidates that were right, with features."""
    rows = []
    text, rate, runs = sight.text, sight.alignment.rate, sight.alignment.runs
    for follow in follows:
        place = follow.first + step
        if place == follow.stop:
            place = follow.resume
            follow = follow.replace(place, step, NO_STOP, NO_STOP)
        if place >= len(text) or text[place] < 0:
            continue
        source, length = SOURCE[follow.kind], min(follow.length + step, MOST_LENGTH)
        pair = sight.classes[last] * NUM_CLASSES + sight.classes[text[place]]
        features: tuple[int, ...] = (
            _START["next_length"] + source * NUM_LENGTHS + LENGTH[length],
            _START["next_step"] + follow.kind * NUM_STEPS + STEP[step],
            _START["next_class"] + source * NUM_CLASSES * NUM_CLASSES + pair,
            _START["next_rate"] + source * NUM_RUNS + rate,
            _START["next_runs"] + source * NUM_RUNS + runs,
        )
        if follow.is_cursor:
            features = (*features, _START["next_cursor"] + LENGTH[length])
        if follow.stop == NO_STOP and place < sight.num_predicted:
            for rule in sight.alignment.rules.find(text, place)[:1]:
                ruled = (*features, _START["next_rule"] + rule.sightings)
                features = (*features, _START["next_rule_passed"] + rule.sightings)
                stop, resume = rule.place + rule.length, place + len(rule.replaced)
                replaced = follow.replace(rule.place, step, stop, resume)
                rows.append((text[rule.place], ruled, replaced))
        rows.append((text[place], features, follow))
    return rows
