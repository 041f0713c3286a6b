# What `src/native.cpp` defines. Its classes have all that their bases here have, but are none of
# them.

from array import array
from collections.abc import Mapping, Sequence

from optimist_aligner import algorithm
from optimist_aligner.drafting import draft
from optimist_aligner.model import common

class Weights:
    def __init__(self, logits: Sequence[float]) -> None: ...

class Common(common.Common):
    def __init__(
        self,
        twos: Mapping[int, Sequence[common.Row]],
        ones: Mapping[int, Sequence[common.Row]],
        classes: Mapping[int, Sequence[common.Row]],
    ) -> None: ...

class Classes:
    def __init__(self, table: bytes) -> None: ...

class Reference(algorithm.Reference):
    def __init__(
        self,
        token_ids: array[int],
        positions: array[int],
        num_aligned: int,
        context_start: int,
        starts: Sequence[int],
        is_rewrite: bool,
        is_chain: bool,
        classes: Classes,
        weights: Weights,
        common: common.Common | None,
    ) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    def follow(self) -> Follower: ...

class Follower(algorithm.Follower):
    def observe(self, token_ids: array[int]) -> None: ...
    def propose(self, max_tokens: int, min_value: float) -> Draft: ...

class Draft(draft.Draft): ...
