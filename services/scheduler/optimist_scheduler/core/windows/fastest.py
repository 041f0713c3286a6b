"""What does most of the work with windows: compiled where there is a C++ compiler, or else Python.

Tests compare both.
"""

from optimist_aligner import IS_COMPILED
from optimist_scheduler.core.windows import slot_planes, worker_windows

if IS_COMPILED:
    from optimist_aligner import native

SlotPlanes = native.SlotPlanes if IS_COMPILED else slot_planes.SlotPlanes
WorkerWindows = native.WorkerWindows if IS_COMPILED else worker_windows.WorkerWindows
