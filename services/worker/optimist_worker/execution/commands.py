"""What rank 0 has the other processes do, and checksums by which they notice differences.

They get every call of its runner, in the same order, so all go through the same states. Tokens need
not be exchanged among tensor-parallel ranks: all have the same logits, and what is chosen of them
follows from seeds and positions.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import torch

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import Plan, StepResult
from optimist_worker.execution.codec import write_plan
from optimist_worker.execution.executor import LocalExecutor
from optimist_worker.execution.group import Group, GroupError, end_process
from optimist_worker.execution.step import Step
from optimist_worker.grammar.masks import Masks

DIGEST_BYTES = 4


class Command(IntEnum):
    """The first byte of a command."""

    END = 0
    RELEASE_ALL = 1
    LAUNCH = 2
    """After it a plan as an ExecuteRequest."""
    COLLECT = 3
    """After it the digest of what rank 0 has collected, and among stages the verdict."""


class LeadingRank(LocalExecutor):
    """Rank 0 of tensor-parallel ranks; if the others are gone, the process ends.

    The model's layers exchange tensors inside the pass by themselves.
    """

    def __init__(self, step: Step, masks: Masks, device: torch.device, group: Group) -> None:
        # What ranks say to each other inside a captured step has not been tried.
        super().__init__(step, masks, device, uses_graphs=False)
        self._group = group

    def release_all(self) -> None:
        """Has the others free every slot."""
        self._send(Command.RELEASE_ALL)

    def prepare(self, plan: Plan) -> None:
        """Has the others launch a plan."""
        self._send(Command.LAUNCH, write_plan(plan).SerializeToString())

    def finish(self, result: StepResult) -> None:
        """Has the others finish the oldest plan and compare its result."""
        self._send(Command.COLLECT, digest(result))
        if result.errors:
            # A pass that failed because a rank is gone must not be reported as the requests' fault.
            self._or_end(self._group.wait_for_all)

    def end(self) -> None:
        """Has the others end."""
        self._send(Command.END)

    def _send(self, command: Command, payload: bytes = b"") -> None:
        self._or_end(self._group.broadcast, bytes([command]) + payload)

    def _or_end(self, speak: Callable[..., None], *arguments: bytes) -> None:
        try:
            speak(*arguments)
        except GroupError as error:
            end_process(f"the other ranks cannot be reached: {error}")


_DECIDING = (
    *("slots", "lengths", "num_emitted_tokens", "token_ids", "num_drafted_tokens"),
    *("num_accepted_tokens", "draft_sources", "window_nodes", "accepted_nodes"),
    *("num_form_drafted_tokens", "num_form_accepted_tokens"),
)


def digest(result: StepResult) -> bytes:
    """Returns the checksum of everything that decides how rows go on, DIGEST_BYTES long.

    Times and the texts of errors differ between ranks that agree.
    """
    columns = [getattr(result, name) for name in _DECIDING]
    checksum = zlib.crc32(f"{result.sequence} {result.num_tokens}".encode())
    for column in [*columns, np.array(sorted(result.errors), np.int32)]:
        checksum = zlib.crc32(np.ascontiguousarray(column).tobytes(), checksum)
    return checksum.to_bytes(DIGEST_BYTES, "little")


def draft_digest(drafts: Drafts) -> int:
    """Returns the checksum of the drafts' tokens and of how they hang together, 32 bits."""
    columns = [drafts.num_tokens, drafts.token_ids * drafts.is_node]
    if drafts.parents is not None:
        columns.append(drafts.parents * drafts.is_node)
    checksum = 0
    for column in columns:
        checksum = zlib.crc32(np.ascontiguousarray(column.cpu().numpy()).tobytes(), checksum)
    return checksum
