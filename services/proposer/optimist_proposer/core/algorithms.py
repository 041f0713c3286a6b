"""The algorithms by the names that settings know them by."""

from collections.abc import Callable

from optimist_proposer.core.algorithm import Algorithm
from optimist_proposer.core.exact import ExactAlgorithm
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.core.vocabulary import Vocabulary

ALGORITHMS: dict[str, Callable[[Vocabulary], Algorithm]] = {
    "exact": lambda _: ExactAlgorithm(),
    "line": lambda vocabulary: LineAlgorithm(vocabulary.newline_token_ids),
}
"""Makes an algorithm for the tokens of a model."""
