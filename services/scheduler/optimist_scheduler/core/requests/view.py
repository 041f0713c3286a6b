"""What decisions are made from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimist_scheduler.core.memory.blocks import BlockPool
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.table import Request, RequestTable
from optimist_scheduler.core.values.arrays import SlotArray
from optimist_scheduler.core.width.widths import DraftWidths

NO_SLOTS: SlotArray = np.empty(0, np.int64)


@dataclass(slots=True)
class ScheduleView:
    """The state as decisions see it; nothing of it is changed."""

    config: EngineConfig
    table: RequestTable
    blocks: BlockPool
    running: SlotArray
    """Slots of the requests that run, the most urgent first [num_running]."""
    fenced: SlotArray
    """Slots that are given back once the plans in flight have settled."""
    settling: SlotArray
    """Slots of the plan whose result will have come before this decision is carried out."""
    widths: DraftWidths
    waiting: Sequence[Request]
    """Requests without a slot, the next one first; empty while none may be admitted."""
    queue_version: int
    """Moves when the waiting requests change."""
