"""All nodes that a tree may have, with their values, found by features instead of factors."""

from collections.abc import Iterable
from math import exp

from optimist_aligner.drafting.candidates import kind_features, none_features
from optimist_aligner.drafting.further import find_further
from optimist_aligner.drafting.tree import LEAST_OPEN, MOST_PATHS, RETURN_LOGIT
from optimist_aligner.follower import AutoFollower
from optimist_aligner.model.layout import START
from optimist_training.proposer.passes import _begin, _begin_further, _Follow, _go_on

Path = tuple[int, ...]
Found = dict[int, tuple[float, list[_Follow]]]
"""Odds of the tokens that may come next, and the candidates that go on after each."""


class Enumeration:
    """The values of all paths that are worth something."""

    def __init__(self, follower: AutoFollower, logits: list[float], min_value: float) -> None:
        self._view, self._logits, self._min_value = follower.look(), logits, min_value
        self.values: dict[Path, float] = {}
        candidates, longest = follower.find_candidates(self._view, min_value)
        shared, none = kind_features(self._view), none_features(self._view, longest)
        odds: dict[int, float] = {}
        begun: dict[int, list[tuple[float, _Follow]]] = {}
        for each in candidates:
            logit = self._sum(each.features) + self._sum(shared[each.kind]) - self._sum(none)
            logit += self._returns(each.offset)
            odds[each.token_id] = odds.get(each.token_id, 0.0) + exp(logit)
            if each.offset >= 0:
                follow = _begin(self._view, each, logit)
                begun.setdefault(each.token_id, []).append((-logit, follow))
        found: Found = {}
        for token_id in odds:
            likeliest = sorted(begun.get(token_id, []), key=lambda one: one[0])[:MOST_PATHS]
            found[token_id] = odds[token_id], [follow for _, follow in likeliest]
        self._share((), 1.0, found)

    def _sum(self, features: Iterable[int]) -> float:
        return sum(self._logits[feature] for feature in features)

    def _returns(self, offset: int) -> float:
        return RETURN_LOGIT * self._view.alignment.count_returns(offset)

    def _share(self, path: Path, value: float, found: Found) -> None:
        total = 1 + sum(odds for odds, _ in found.values())
        for token_id, (odds, follows) in found.items():
            share = value * odds / total
            if share >= self._min_value:
                node = (*path, token_id)
                self.values[node] = share
                self._share(node, share, self._find_next(node, share, follows))

    def _find_next(self, path: Path, value: float, follows: list[_Follow]) -> Found:
        view, step = self._view, len(path)
        rows = [
            (row, True, self._returns(_offset(each, step)))
            for each in follows
            for row in _go_on(view, each, path[-1], step)
        ]
        most = len(rows)
        if not rows and value >= LEAST_OPEN * self._min_value:
            most = MOST_PATHS
            rows = [
                (_begin_further(each, self._logits, step), each.offset >= 0, 0.0)
                for each in find_further(view, path)
            ]
        found: Found = {}
        for row, goes_on, returns in rows:
            slope = self._logits[START["next_logit"] + row.follow.kind]
            odds, known = found.get(row.token_id, (0.0, []))
            if goes_on and len(known) < most:
                known = [*known, row.follow]
            logit = slope * row.logit + self._sum(row.features) + returns
            found[row.token_id] = odds + exp(logit), known
        return found


def _offset(follow: _Follow, step: int) -> int:
    """Returns where a candidate goes on, `step` nodes after the output."""
    offset = follow.first + step
    return follow.resume if offset == follow.stop else offset
