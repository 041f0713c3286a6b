"""A draft that is copied from the sources, with values by the hazard law.

After `e` tokens that matched since it was found, the next one differs with a probability of about
1/(e + 1) (measured on edits of source code). So the n-th token of a copy, and all before it, are
right with a probability of e/(e + n): little evidence is tried with little, and a copy that holds
is trusted soon.
"""

from array import array

from optimist_aligner.drafting.draft import FLOAT32, Draft
from optimist_aligner.text.sources import INT32, SEPARATOR, Sources

START_EVIDENCE = 256
"""Evidence, in tokens, that an output begins as the first prediction does: that is its purpose."""


def copied(
    sources: Sources,
    index: int,
    evidence: int,
    max_tokens: int,
    min_value: float,
) -> Draft:
    """Returns what follows from an index in the sources on, up to the end of that text.

    Args:
        sources: The sources.
        index: Where the copy begins.
        evidence: Tokens that matched before the index.
        max_tokens: Most nodes.
        min_value: Least value of a node.
    """
    # One more than may stay, so that rounding cannot cost one; `chained` takes it off.
    room = evidence * (1 / min_value - 1) + 1 if min_value > 0 else max_tokens
    count = max_tokens if room >= max_tokens else max(0, int(room))
    token_ids = sources.token_ids[index : index + count]
    if SEPARATOR in token_ids:
        del token_ids[token_ids.index(SEPARATOR) :]
    positions = sources.positions[index : index + len(token_ids)]
    return chained(token_ids, positions, evidence, min_value)


def chained(
    token_ids: "array[int]", positions: "array[int]", evidence: int, min_value: float
) -> Draft:
    """Returns tokens as a chain, as far as their values go.

    Args:
        token_ids: Consecutive tokens [num_tokens].
        positions: Of each token, as `Sources.positions` [num_tokens].
        evidence: Tokens that matched before the first.
        min_value: Least value of a node.
    """
    values = array(FLOAT32, [evidence / (evidence + n) for n in range(1, len(token_ids) + 1)])
    while values and values[-1] < min_value:
        values.pop()
    count = len(values)
    return Draft(token_ids[:count], array(INT32, range(-1, count - 1)), positions[:count], values)
