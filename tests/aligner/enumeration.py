"""All nodes that a tree may have, with their values, found by features instead of factors."""

from math import exp
from typing import NamedTuple

from optimist_aligner.drafting.candidates import NO_STOP, View, kind_features, none_features
from optimist_aligner.drafting.further import find_further
from optimist_aligner.drafting.tree import LEAST_OPEN
from optimist_aligner.follower import AutoFollower
from optimist_aligner.model.layout import (
    LENGTH,
    MOST_LENGTH,
    MOST_LOGIT,
    NUM_CLASSES,
    NUM_LENGTHS,
    NUM_RUNS,
    NUM_STEPS,
    OWN,
    PREDICTED,
    SOURCE,
    START,
    STEP,
)

MOST_PATHS = 3
"""Candidates of one first token that are followed further: the likeliest."""


class Trace(NamedTuple):
    """A candidate, followed."""

    kind: int
    logit: float
    length: int
    next_place: int
    stop: int
    resume: int
    is_cursor: bool


class Enumeration:
    """The values of all paths that are worth something."""

    def __init__(self, follower: AutoFollower, logits: list[float], min_value: float) -> None:
        self._view: View = follower.look()
        self._logits, self._min_value = logits, min_value
        self.values: dict[tuple[int, ...], float] = {}
        view, alignment = self._view, self._view.alignment
        shared = kind_features(view)
        found: dict[int, tuple[float, list[Trace]]] = {}
        candidates, longest = follower.find_candidates(view, min_value)
        none = sum(logits[each] for each in none_features(view, longest))
        for each in candidates:
            logit = sum(logits[one] for one in (*each.features, *shared[each.kind])) - none
            traces = []
            if each.place >= 0:
                counted = each.length if each.kind in (PREDICTED, OWN) else 0
                at_cursor = alignment.pending is None and alignment.is_found
                is_cursor = at_cursor and each.place == alignment.place
                end = each.place + 1
                one = Trace(each.kind, logit, counted, end, each.stop, each.resume, is_cursor)
                traces = [one]
            weight, known = found.get(each.token_id, (0.0, []))
            found[each.token_id] = weight + exp(logit), known + traces
        for token_id, (weight, traces) in found.items():
            likeliest = sorted(traces, key=lambda trace: -trace.logit)[:MOST_PATHS]
            found[token_id] = weight, likeliest
        self._share((), 1.0, found)

    def _share(
        self, path: tuple[int, ...], value: float, found: dict[int, tuple[float, list[Trace]]]
    ) -> None:
        total = 1 + sum(weight for weight, _ in found.values())
        for token_id, (weight, traces) in found.items():
            share = value * weight / total
            if share >= self._min_value:
                node = (*path, token_id)
                self.values[node] = share
                self._share(node, share, self._go_on(node, traces) or self._look(node, share))

    def _go_on(
        self, path: tuple[int, ...], traces: list[Trace]
    ) -> dict[int, tuple[float, list[Trace]]]:
        found: dict[int, tuple[float, list[Trace]]] = {}

        def add(token_id: int, logit: float, trace: Trace) -> None:
            weight, known = found.get(token_id, (0.0, []))
            found[token_id] = weight + exp(logit), [*known, trace]

        text, rules = self._view.text, self._view.alignment.rules
        for trace in traces:
            if trace.next_place == trace.stop:
                trace = trace._replace(next_place=trace.resume, stop=NO_STOP, is_cursor=False)
            place = trace.next_place
            if place >= len(text) or text[place] < 0:
                continue
            logit = self._logit(trace, path[-1], text[place], len(path))
            if trace.stop == NO_STOP and place < self._view.num_aligned:
                for rule in rules.find(text, place)[:1]:
                    ruled = trace._replace(
                        next_place=rule.place + 1,
                        stop=rule.place + rule.length,
                        resume=place + len(rule.replaced),
                        is_cursor=False,
                    )
                    more = self._logits[START["next_rule"] + rule.sightings]
                    add(text[rule.place], logit + more, ruled)
                    logit += self._logits[START["next_rule_passed"] + rule.sightings]
            add(text[place], logit, trace._replace(next_place=place + 1))
        return found

    def _look(self, path: tuple[int, ...], value: float) -> dict[int, tuple[float, list[Trace]]]:
        """Returns what may come where no trace goes on."""
        found: dict[int, tuple[float, list[Trace]]] = {}
        if value < LEAST_OPEN * self._min_value:
            return found
        for each in find_further(self._view, path):
            logit = sum(self._logits[one] for one in each.features)
            weight, known = found.get(each.token_id, (0.0, []))
            if each.place >= 0 and len(known) < MOST_PATHS:
                length = each.length - len(path)
                known.append(Trace(OWN, logit, length, each.place + 1, NO_STOP, NO_STOP, False))
            found[each.token_id] = weight + exp(logit), known
        return found

    def _logit(self, trace: Trace, last: int, token_id: int, step: int) -> float:
        alignment, classes = self._view.alignment, self._view.classes
        source = SOURCE[trace.kind]
        length = LENGTH[min(trace.length + step, MOST_LENGTH)]
        pair = classes[last] * NUM_CLASSES + classes[token_id]
        features = [
            START["next_length"] + source * NUM_LENGTHS + length,
            START["next_step"] + trace.kind * NUM_STEPS + STEP[step],
            START["next_class"] + source * NUM_CLASSES**2 + pair,
            START["next_rate"] + source * NUM_RUNS + alignment.rate,
            START["next_runs"] + source * NUM_RUNS + alignment.runs,
        ]
        if trace.is_cursor:
            features.append(START["next_cursor"] + length)
        base = self._logits[START["next_logit"] + trace.kind] * min(trace.logit, MOST_LOGIT)
        return base + sum(self._logits[feature] for feature in features)
