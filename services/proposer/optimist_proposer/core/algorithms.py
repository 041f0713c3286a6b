"""The algorithms by the names that settings know them by."""

from collections.abc import Callable
from functools import cache

from optimist_aligner import Aligner
from optimist_aligner.algorithm import Algorithm
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_proposer.core.line import LineAlgorithm


# It takes seconds, and remembers nothing of requests.
@cache
def _auto(vocabulary: Vocabulary) -> Algorithm:
    algorithm = Aligner(vocabulary)
    # Built now, so that no request waits for it.
    _ = algorithm.common
    return algorithm


def _line(vocabulary: Vocabulary) -> Algorithm:
    return LineAlgorithm(vocabulary.newline_token_ids)


ALGORITHMS: dict[str, Callable[[Vocabulary], Algorithm]] = {"auto": _auto, "line": _line}
"""Makes an algorithm for the tokens of a model."""
