"""Examples from the passes of simulated requests.

At the beginning of every pass the candidates for the next token are an example, with those that
are right marked. Each right one is followed as long as it is right; every step of that is an
example of its own, in which it competes with the others that were right until then.
"""

from collections.abc import Sequence
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple

from optimist_aligner.drafting.candidates import (
    NO_STOP,
    Candidate,
    View,
    kind_features,
    none_features,
)
from optimist_aligner.drafting.draft import NO_PARENT
from optimist_aligner.drafting.further import find_further
from optimist_aligner.drafting.tree import MOST_PATHS
from optimist_aligner.follower import Aligner, AutoFollower
from optimist_aligner.following.rule import Rule
from optimist_aligner.following.template import NOWHERE
from optimist_aligner.model.common import Continuations
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
from optimist_aligner.model.weights import Weights
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.pair import Pair
from optimist_training.proposer.fit import ExampleBuilder, Examples

WINDOW = 64
_MOST_STEPS_FOLLOWED = 70


class Round(NamedTuple):
    """What the requests of a round have in common."""

    vocabulary: Vocabulary
    continuations: Continuations
    logits: list[float]
    """The weights so far [NUM_WEIGHTS]."""
    min_values: tuple[float, ...]
    """Least values of nodes; each request is simulated once with each."""


def collect(round_: Round, pairs: Sequence[Pair]) -> tuple[Examples, Examples]:
    """Returns examples of first nodes and of nodes after them, of some requests."""
    algorithm = Aligner(round_.vocabulary, Weights(round_.logits), round_.continuations)
    roots, steps = ExampleBuilder(), ExampleBuilder()
    for pair in pairs:
        reference = algorithm.prepare(pair.sources)
        for min_value in round_.min_values:
            follower, rest = reference.follow(), pair.truth
            while rest:
                collect_pass(follower, rest, round_.logits, min_value, roots, steps)
                draft = follower.propose(WINDOW, min_value)
                _, num_accepted = draft.walk(rest, NO_PARENT)
                follower.observe(rest[: num_accepted + 1])
                rest = rest[num_accepted + 1 :]
    return roots.build(), steps.build()


def collect_pass(
    follower: AutoFollower,
    truth: Sequence[int],
    logits: Sequence[float],
    min_value: float,
    roots: ExampleBuilder,
    steps: ExampleBuilder,
) -> None:
    """Adds the examples of one pass.

    Args:
        follower: Has observed the output so far.
        truth: What comes next; at least one token.
        logits: The weights so far.
        min_value: Least value of a node in this pass.
        roots: Takes examples of first nodes.
        steps: Takes examples of nodes after them.
    """
    view = follower.look()
    candidates, longest = follower.find_candidates(view, min_value)
    shared, none = kind_features(view), none_features(view, longest)
    none_logit = sum(logits[feature] for feature in none)
    found: list[tuple[float, Candidate]] = []
    for each in candidates:
        features = (*each.features, *shared[each.kind])
        is_right = each.token_id == truth[0]
        roots.add_row(features, is_right)
        if is_right:
            found.append((sum(logits[feature] for feature in features) - none_logit, each))
    roots.end_group(none)
    likeliest = nlargest(MOST_PATHS, found, key=itemgetter(0))
    right = [_begin(view, each, logit) for logit, each in likeliest if each.offset >= 0]
    for step in range(1, min(len(truth), _MOST_STEPS_FOLLOWED)):
        rows = [row for follow in right for row in _go_on(view, follow, truth[step - 1], step)]
        if not rows:
            further = find_further(view, truth[:step])
            rows = [_begin_further(each, logits, step) for each in further]
        if not rows:
            return
        for row in rows:
            steps.add_row(row.features, row.token_id == truth[step], row.logit, row.follow.kind)
        steps.end_group()
        right = [
            row.follow for row in rows if row.token_id == truth[step] and row.follow.first >= 0
        ]


def _begin_further(candidate: Candidate, logits: Sequence[float], step: int) -> "_Row":
    """Returns what may come `step` nodes after the output, where no candidate goes on."""
    kind, offset, features = candidate.kind, candidate.offset, tuple(candidate.features)
    logit = min(sum(logits[each] for each in features), MOST_LOGIT)
    first = offset - step if offset >= 0 else NOWHERE
    follow = _Follow(kind, logit, candidate.length - step, first, NO_STOP, NO_STOP, is_cursor=False)
    return _Row(candidate.token_id, features, follow, 0.0)


class _Follow(NamedTuple):
    """A candidate that was right so far."""

    kind: int
    logit: float
    length: int
    first: int
    """Index of the first node; that of the node after n others is n more."""
    stop: int
    resume: int
    is_cursor: bool


class _Row(NamedTuple):
    token_id: int
    features: tuple[int, ...]
    follow: _Follow
    logit: float
    """Of the first node; 0 of a node that nothing was followed to."""


def _begin(view: View, candidate: Candidate, logit: float) -> _Follow:
    alignment = view.alignment
    is_cursor = alignment.pending is None and alignment.is_found
    return _Follow(
        candidate.kind,
        min(logit, MOST_LOGIT),
        candidate.length if candidate.kind in (PREDICTED, OWN) else 0,
        candidate.offset,
        candidate.stop,
        candidate.resume,
        is_cursor and candidate.offset == alignment.offset,
    )


def _go_on(view: View, follow: _Follow, last: int, step: int) -> list[_Row]:
    """Returns what comes next after a candidate that was right, `step` nodes after the output."""
    text, offset = view.text, follow.first + step
    if offset == follow.stop:
        offset = follow.resume
        follow = follow._replace(first=offset - step, stop=NO_STOP, resume=NO_STOP, is_cursor=False)
    if offset >= len(text) or text[offset] < 0:
        return []
    features = _features(view, follow, last, text[offset], step)
    if follow.stop != NO_STOP or offset >= view.num_aligned:
        return [_Row(text[offset], features, follow, follow.logit)]
    rows = []
    for rule in view.alignment.rules.find(view.text, offset)[:1]:
        ruled = (*features, START["next_rule"] + rule.sightings)
        features = (*features, START["next_rule_passed"] + rule.sightings)
        rows.append(
            _Row(text[rule.offset], ruled, _replace(follow, rule, offset, step), follow.logit)
        )
    return [*rows, _Row(text[offset], features, follow, follow.logit)]


def _replace(follow: _Follow, rule: Rule, offset: int, step: int) -> _Follow:
    """Returns a candidate that goes on with what a rule puts there."""
    return follow._replace(
        first=rule.offset - step,
        stop=rule.offset + rule.length,
        resume=offset + len(rule.replaced),
        is_cursor=False,
    )


def _features(view: View, follow: _Follow, last: int, token_id: int, step: int) -> tuple[int, ...]:
    source, length = SOURCE[follow.kind], min(follow.length + step, MOST_LENGTH)
    pair = view.classes.find(last) * NUM_CLASSES + view.classes.find(token_id)
    features = (
        START["next_length"] + source * NUM_LENGTHS + LENGTH[length],
        START["next_step"] + follow.kind * NUM_STEPS + STEP[step],
        START["next_class"] + source * NUM_CLASSES * NUM_CLASSES + pair,
        START["next_rate"] + source * NUM_RUNS + view.alignment.rate,
        START["next_runs"] + source * NUM_RUNS + view.alignment.runs,
    )
    return (*features, START["next_cursor"] + LENGTH[length]) if follow.is_cursor else features
