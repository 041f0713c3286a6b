"""Where each weight of the model stands, and how what is counted is put into buckets.

The model is linear: a candidate's logit is the sum of the weights of its features, each of which is
one cell of one of these blocks.
"""

from typing import Final, NamedTuple

PREDICTED: Final = 0
OWN: Final = 1
PREDICTED_SKIP: Final = 2
OWN_SKIP: Final = 3
EXPECTED: Final = 4
TEMPLATE: Final = 5
FREQUENT: Final = 6
COMMON: Final = 7
"""Kinds of candidates: offsets of what is aligned (predictions, or the prompt) or of the output (or
the rest of the prompt) after the same tokens; after the same tokens but for the last; offsets near
where the cursor or the template was lost; tokens that are frequent here; and tokens that are
common after such tokens in what models write."""
NUM_KINDS: Final = 8
SOURCE: Final = (0, 1, 0, 1, 0, 1, 1, 1)
"""Of a kind: 0 continues in a prediction, 1 in the output."""

NUM_CLASSES: Final = 10
"""See `token_class.py`."""
MOST_LENGTH: Final = 32
"""Longer agreement than this tells no more."""
MOST_LOGIT: Final = 8.0
MOST_STEPS: Final = 1024
"""Nodes after each other that a tree may have."""


class Block(NamedTuple):
    """Some weights that stand together."""

    name: str
    start: int
    num_weights: int


def _lay_out(*sizes: tuple[str, int]) -> dict[str, Block]:
    blocks, start = {}, 0
    for name, size in sizes:
        blocks[name] = Block(name, start, size)
        start += size
    return blocks


NUM_LENGTHS: Final = 13
NUM_DISTANCES: Final = 16
NO_DISTANCE: Final = 15
NUM_RECENCIES: Final = 6
FROM_PROMPT: Final = 5
NUM_LATEST: Final = 7
NUM_TOTALS: Final = 6
NUM_SHARES: Final = 4
NUM_LOST: Final = 8
NUM_AHEAD: Final = 12
NUM_NEAR: Final = 6
NUM_RUNS: Final = 8
NUM_FOLLOWED: Final = 6
NUM_COUNTS: Final = 8
NUM_CHANCES: Final = 7
NUM_SIGHTINGS: Final = 32
NUM_STEPS: Final = 12

BLOCKS: Final = _lay_out(
    # Of every candidate, by kind.
    ("class", NUM_KINDS * NUM_CLASSES * NUM_CLASSES),
    ("rate", NUM_KINDS * NUM_RUNS),
    ("runs", NUM_KINDS * NUM_RUNS),
    ("followed", NUM_KINDS * NUM_FOLLOWED),
    ("rejected", NUM_KINDS * 2),
    # Of those after equal tokens.
    ("length", 4 * NUM_LENGTHS),
    ("distance", 3 * NUM_DISTANCES),
    ("skip_distance", NUM_DISTANCES),
    ("latest", 3 * NUM_LATEST),
    ("share", 3 * NUM_TOTALS * NUM_SHARES),
    ("own_share", 3 * NUM_TOTALS * NUM_SHARES),
    ("recency", 3 * NUM_RECENCIES),
    ("skip_recency", NUM_RECENCIES),
    ("template_distance", 3 * NUM_DISTANCES),
    ("cursor", NUM_LENGTHS),
    ("rule", NUM_SIGHTINGS),
    ("rule_passed", NUM_SIGHTINGS),
    # Of guesses near where the offset was lost.
    ("ahead", NUM_LOST * NUM_AHEAD),
    ("same_class", NUM_NEAR * NUM_LOST * 3),
    ("next_line", 3 * NUM_LOST),
    ("template_ahead", NUM_LOST * NUM_AHEAD),
    ("template_same_class", NUM_NEAR * NUM_LOST * 3),
    # Of frequent tokens.
    ("count", NUM_COUNTS),
    ("age", NUM_COUNTS),
    # Of common tokens, by what stands before and how often that was counted.
    ("common", 3 * 3 * NUM_CHANCES),
    # Of tokens after a node that nothing else goes on from.
    ("further", 2 * 2 * NUM_SHARES),
    ("further_common", 3 * 3 * NUM_CHANCES),
    # Of none of the candidates being right.
    ("none", 1),
    ("none_length", NUM_LENGTHS),
    ("none_class", NUM_CLASSES),
    ("none_lost", NUM_LOST),
    ("none_longest", NUM_LENGTHS),
    # Of a candidate that was right going on to be right.
    ("next_logit", NUM_KINDS),
    ("next_length", 2 * NUM_LENGTHS),
    ("next_step", NUM_KINDS * NUM_STEPS),
    ("next_class", 2 * NUM_CLASSES * NUM_CLASSES),
    ("next_rate", 2 * NUM_RUNS),
    ("next_runs", 2 * NUM_RUNS),
    ("next_cursor", NUM_LENGTHS),
    ("next_rule", NUM_SIGHTINGS),
    ("next_rule_passed", NUM_SIGHTINGS),
)
START: Final = {block.name: block.start for block in BLOCKS.values()}
NUM_WEIGHTS: Final = sum(block.num_weights for block in BLOCKS.values())


def _buckets(edges: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Returns for each number below `size` how many edges it reaches."""
    return tuple(sum(number >= edge for edge in edges) for number in range(size))


LENGTH: Final = _buckets((1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 32), MOST_LENGTH + 1)
LENGTH_CLASS: Final = _buckets((2, 5), MOST_LENGTH + 1)
FOLLOWED: Final = _buckets((1, 2, 4, 8, 16), MOST_LENGTH + 1)
MOST_LOST: Final = 20
LOST: Final = _buckets((1, 2, 3, 4, 5, 7, 12), MOST_LOST + 1)
MOST_AHEAD: Final = 16
AHEAD: Final = _buckets((1, 2, 3, 4, 6, 9, 13, 17), MOST_AHEAD)
NEAR: Final = _buckets((1, 2, 3, 4, 8), MOST_AHEAD)
RECENCY: Final = _buckets((1, 2, 4, 8), 64)
MOST_COUNTED: Final = 24
TOTAL: Final = _buckets((2, 3, 5, 9, 17), MOST_COUNTED + 1)
MOST_RANK: Final = 33
LATEST: Final = _buckets((1, 2, 4, 8, 16, 33), MOST_RANK + 1)
STEP: Final = tuple(min(step.bit_length(), NUM_STEPS - 1) for step in range(MOST_STEPS + 1))

_AHEAD_EDGES: Final = (1, 2, 3, 5, 9, 17, 33, 65, 257)
_BEHIND_EDGES: Final = (3, 9, 65, 257)
MOST_DISTANCE: Final = 300
DISTANCE: Final = tuple(
    sum(distance >= edge for edge in _AHEAD_EDGES)
    if distance >= 0
    else 10 + sum(-distance >= edge for edge in _BEHIND_EDGES)
    for distance in range(-MOST_DISTANCE, MOST_DISTANCE + 1)
)


def distance_bucket(distance: int) -> int:
    """Returns the bucket of an offset's distance, in tokens, from where it is expected."""
    distance = max(-MOST_DISTANCE, min(MOST_DISTANCE, distance))
    return DISTANCE[distance + MOST_DISTANCE]


def run_bucket(num_tokens: int) -> int:
    """Returns the bucket of a number of tokens without a loss."""
    return min(num_tokens.bit_length(), NUM_RUNS - 1)


def share_bucket(count: int, total: int) -> int:
    """Returns the bucket of a share: up to a quarter, up to a half, up to nine tenths, more."""
    return (4 * count > total) + (2 * count > total) + (10 * count > 9 * total)
