# What `src/native.cpp` defines. Its classes have all that their bases here have, but are none of
# them.

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

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

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

class WindowReader:
    def __init__(self, least_value: float, least_hazard: float, prior_hazard: float, /) -> None: ...
    def find_hazards(
        self,
        token_ids: Int32Array,
        parents: Int32Array | None,
        positions: Int32Array,
        values: Float32Array,
        num_predicted_tokens: int,
        num_prompt_tokens: int,
        vocab_size: int,
        /,
    ) -> Float32Array | None: ...

class SlotPlanes:
    def __init__(
        self,
        token_ids: Int32Array,
        expected: Int32Array,
        hazards_before: Float32Array,
        node_hazards: Float32Array,
        is_tree: BoolArray,
        num_side_nodes: Int32Array,
        /,
    ) -> None: ...
    def __len__(self) -> int: ...
    def set(
        self,
        slot: int,
        token_ids: Int32Array,
        parents: Int32Array | None,
        hazards: Float32Array,
        start: int,
        length: int,
        /,
    ) -> int: ...
    def remove(self, slot: int, /) -> None: ...
    def follow(
        self,
        slots: npt.NDArray[np.integer],
        starts: Int32Array,
        counts: Int32Array,
        token_ids: Int32Array,
        window_ends: Int32Array,
        /,
    ) -> tuple[Int32Array, Int32Array, Float32Array, list[int]]: ...
    def count_worth(
        self,
        slots: npt.NDArray[np.integer],
        lengths: Int32Array,
        drafts: Int32Array,
        depths: Float32Array,
        /,
    ) -> Int32Array: ...

class WorkerWindows:
    num_nodes: Int32Array
    def __init__(self, num_nodes: Int32Array, /) -> None: ...
    def set(self, slot: int, positions: Int32Array, parents: Int32Array | None, /) -> None: ...
    def find_positions(
        self,
        slots: npt.NDArray[np.integer],
        counts: Int32Array,
        nodes: Int32Array,
        /,
    ) -> Int32Array | None: ...
    def find_drafted(
        self,
        slots: npt.NDArray[np.integer],
        nodes: Int32Array,
        num_drafted: Int32Array,
        /,
    ) -> tuple[npt.NDArray[np.int64], Int32Array]: ...

def fits_plan(
    slots: npt.NDArray[np.integer],
    emits: Int32Array,
    num_planned_drafts: Int32Array,
    num_tokens: Int32Array,
    max_lengths: Int32Array,
    is_alive: BoolArray,
    result_slots: Int32Array,
    lengths: Int32Array,
    num_emitted: Int32Array,
    token_ids: Int32Array,
    num_drafted: Int32Array,
    num_accepted: Int32Array,
    sources: Int32Array,
    vocab_size: int,
    /,
) -> bool: ...
