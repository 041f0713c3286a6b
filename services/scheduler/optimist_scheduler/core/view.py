"""What decisions are made from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.arrays import Int32Array
from optimist_scheduler.core.blocks import BlockPool
from optimist_scheduler.core.config import EngineConfig
from optimist_scheduler.core.requests import Request, RequestTable
from optimist_scheduler.core.width import DraftWidths

NO_SLOTS: Int32Array = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """The state as decisions see it; nothing of it is changed."""

    config: EngineConfig
    table: RequestTable
    blocks: BlockPool
    running: Int32Array
    """Slots of the requests that run, the most urgent first [num_running]."""
    fenced: Int32Array
    """Slots that are given back once the plans in flight have settled."""
    settling: Int32Array
    """Slots of the plan whose result will have come before this decision is carried out."""
    widths: DraftWidths
    waiting: Sequence[Request]
    """Requests without a slot, the next one first; empty while none may be admitted."""
    queue_version: int
    """Moves when the waiting requests change."""
