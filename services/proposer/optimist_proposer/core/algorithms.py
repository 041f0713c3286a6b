"""The algorithms by the names that settings know them by."""

from collections.abc import Callable
from functools import cache

from optimist_aligner import Aligner
from optimist_aligner.algorithm import Algorithm
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_common.errors import SetupError, one_line


# It takes seconds, and remembers nothing of requests.
@cache
def _auto(vocabulary: Vocabulary) -> Algorithm:
    algorithm = Aligner(vocabulary)
    # Built now, so that no request waits for it.
    _ = algorithm.common
    return algorithm


def _line(vocabulary: Vocabulary) -> Algorithm:
    try:
        # Only this one needs RapidFuzz; who does not choose it need not have it.
        from optimist_proposer.core.line import LineAlgorithm
    except ImportError as error:
        raise SetupError(
            f"--algorithm: line needs RapidFuzz: {one_line(error)}; "
            "pip install rapidfuzz, or choose auto"
        ) from None
    return LineAlgorithm(vocabulary.newline_token_ids)


ALGORITHMS: dict[str, Callable[[Vocabulary], Algorithm]] = {"auto": _auto, "line": _line}
"""Makes an algorithm for the tokens of a model; raises SetupError for lack of a library."""
