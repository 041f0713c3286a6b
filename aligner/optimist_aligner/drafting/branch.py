"""What may come after a node of a tree, and what it was found as."""

from mypy_extensions import mypyc_attr

from optimist_aligner.drafting.candidates import NO_STOP, Candidate
from optimist_aligner.drafting.draft import NO_PARENT
from optimist_aligner.model.weights import Continuation


@mypyc_attr(acyclic=True)
class Path:
    """A candidate that agrees with the nodes up to here.

    Attributes:
        factor: Of all that comes after it.
        factors: The others.
        agreed: Tokens that agreed before the first node if they count on, else 0.
        first: Where the first node is in the text; the node after n others is n tokens further on.
        stop, resume: See Candidate.
    """

    __slots__ = ("agreed", "factor", "factors", "first", "resume", "stop")

    def __init__(
        self,
        factor: float,
        factors: Continuation,
        agreed: int,
        first: int,
        stop: int = NO_STOP,
        resume: int = NO_STOP,
    ) -> None:
        self.factor, self.factors, self.agreed, self.first = factor, factors, agreed, first
        self.stop, self.resume = stop, resume


@mypyc_attr(acyclic=True)
class Branch:
    """What may come after a node.

    Attributes:
        token_id: The token.
        weight: Its odds against nothing that was found.
        position: See `Sources.positions`.
        paths: What it was found as.
        value, parent, step: While it waits to be a node: its chance, the node before it, and how
            many nodes lead there.
    """

    __slots__ = ("parent", "paths", "position", "step", "token_id", "value", "weight")

    def __init__(self, token_id: int, weight: float, position: int, paths: list[Path]) -> None:
        self.token_id, self.weight, self.position, self.paths = token_id, weight, position, paths
        self.value, self.parent, self.step = 0.0, NO_PARENT, 0


@mypyc_attr(acyclic=True)
class First:
    """A first token: its odds against none of the candidates, its chance, what it was found as."""

    __slots__ = ("odds", "seeds", "token_id", "value")

    def __init__(self, token_id: int, odds: float, value: float) -> None:
        self.token_id, self.odds, self.value = token_id, odds, value
        self.seeds: list[Candidate] = []
