"""What the worker drafts with where a window has nothing to draft from."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optimist_aligner.cost import CostCurve
from optimist_common.drafts import DraftSource
from optimist_scheduler.core.base.values import Int32Array


@dataclass(frozen=True, slots=True)
class Drafter:
    """The shape of a drafter's drafts: chains, or trees with more nodes than levels."""

    source: DraftSource
    max_tokens: int
    """Most drafts of a row in one pass, all branches of a tree together."""
    max_depth: int
    """Most of them that can be accepted."""

    @property
    def is_lookup(self) -> bool:
        """Whether it looks in the request's own text, as proposers do, for want of one."""
        return self.source is DraftSource.NGRAM

    @property
    def tokens_per_level(self) -> float:
        """Drafts that one more level costs; 1 for chains."""
        return self.max_tokens / self.max_depth

    def count_tokens(self, levels: npt.ArrayLike) -> Int32Array:
        """Returns how many drafts as many levels have."""
        tokens: Int32Array = -(-np.asarray(levels, np.int32) * self.max_tokens // self.max_depth)
        return tokens

    def count_levels(self, num_tokens: Int32Array) -> Int32Array:
        """Returns how many levels as many drafts have; of levels begun, the first counts."""
        levels = np.clip(num_tokens * self.max_depth // self.max_tokens, 1, self.max_depth)
        drafted: Int32Array = levels * (num_tokens > 0)
        return drafted


@dataclass(frozen=True, slots=True, eq=False)
class DrafterRows:
    """What a choice of widths has to know of the drafter."""

    rates: npt.NDArray[np.floating]
    """Chance that a level is accepted, given that those before it were [num_rows]."""
    limits: Int32Array
    """Most levels [num_rows]."""
    tokens_per_level: float
    curve: CostCurve
    """Time of the drafter by the largest level of a pass, however many rows it drafts for."""

    def cost(self, levels: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Returns the time in nanoseconds that the drafter takes for passes of so many levels."""
        levels = np.asarray(levels)
        return np.where(levels > 0, self.curve.cost(levels), 0.0)
