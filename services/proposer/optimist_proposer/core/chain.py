"""A draft that is copied from one place, with values by the hazard law.

After `e` tokens that matched since the place was found, the next one differs with a probability of
about 1/(e + 1) (measured on edits of source code). So the n-th token of a copy, and all before it,
are right with a probability of e/(e + n): little evidence is tried with little, and a place that
holds is trusted soon.
"""

from array import array

from optimist_aligner.draft import FLOAT32, Draft
from optimist_aligner.sources import INT32, NO_POSITION, SEPARATOR, Sources

START_EVIDENCE = 256
"""Evidence, in tokens, that an output begins as the first prediction does: that is its purpose."""


def copied(
    sources: Sources,
    place: int,
    evidence: int,
    max_tokens: int,
    min_value: float,
    output: "array[int] | None" = None,
) -> Draft:
    """Returns what stands from a place on, up to the end of the text in which it is.

    Args:
        sources: The sources.
        place: Where the copy begins: a place in the sources, or behind them one in `output`.
        evidence: Tokens that matched before the place.
        max_tokens: Most nodes.
        min_value: Least value of a node.
        output: What was observed so far, if it is copied from too [num_tokens].
    """
    num_places = len(sources.token_ids)
    # One more than may stay, so that rounding cannot cost one; the loop below takes it off.
    room = evidence * (1 / min_value - 1) + 1 if min_value > 0 else max_tokens
    count = max_tokens if room >= max_tokens else max(0, int(room))
    if place < num_places:
        token_ids = sources.token_ids[place : place + count]
        if SEPARATOR in token_ids:
            del token_ids[token_ids.index(SEPARATOR) :]
        positions = sources.positions[place : place + len(token_ids)]
    else:
        start = place - num_places
        token_ids = output[start : start + count] if output is not None else array(INT32)
        positions = array(INT32, [NO_POSITION]) * len(token_ids)
    values = array(FLOAT32, [evidence / (evidence + n) for n in range(1, len(token_ids) + 1)])
    while values and values[-1] < min_value:
        values.pop()
    count = len(values)
    return Draft(token_ids[:count], array(INT32, range(-1, count - 1)), positions[:count], values)
