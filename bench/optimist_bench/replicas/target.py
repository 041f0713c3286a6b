"""A request whose output is known: what a target model would make of the windows it is sent."""

from array import array
from dataclasses import dataclass, field

from optimist.proposer.v1 import proposer_pb2
from optimist_common.columns import from_bytes

NUM_DRAFTS = 64
"""Most nodes that are verified in a pass."""
_NO_PARENT = -1


@dataclass(slots=True)
class Window:
    """A tree of expected tokens after the first `base` of the output."""

    base: int = 0
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, message: proposer_pb2.Window) -> "Window":
        """Reads a message."""
        token_ids = from_bytes(message.token_ids).tolist()
        parents = from_bytes(message.parents).tolist() or list(range(-1, len(token_ids) - 1))
        return cls(message.base, token_ids, parents)

    def draft(self, output: "array[int]") -> list[int]:
        """Returns the first nodes after the output, in the order of the window."""
        node = _NO_PARENT
        for token_id in output[self.base :]:
            node = self._child(node, token_id)
            if node == _NO_PARENT:
                return []
        subtree = {node}
        drafted: list[int] = []
        for index in range(node + 1, len(self.token_ids)):
            if self.parents[index] in subtree:
                subtree.add(index)
                drafted.append(index)
                if len(drafted) == NUM_DRAFTS:
                    break
        return drafted

    def _child(self, node: int, token_id: int) -> int:
        for index in range(node + 1, len(self.token_ids)):
            if self.parents[index] == node and self.token_ids[index] == token_id:
                return index
        return _NO_PARENT


@dataclass(slots=True)
class SimulatedRequest:
    """Emits the true output; a pass accepts the longest path of its draft, and adds one token."""

    request_id: str
    predicted: "array[int]"
    truth: "array[int]"
    output: "array[int]" = field(default_factory=lambda: array("i"))
    window: Window = field(default_factory=Window)
    num_passes: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the output is complete."""
        return len(self.output) == len(self.truth)

    def take_window(self, window: Window) -> None:
        """Replaces the window unless that knows more of the output."""
        if window.base >= self.window.base:
            self.window = window

    def run_pass(self) -> None:
        """Verifies a draft and emits tokens."""
        drafted = self.window.draft(self.output)
        emitted: list[int] = []
        start = len(self.output)
        # The node that the drafted ones follow is the only parent that is none of them.
        node = self.window.parents[drafted[0]] if drafted else _NO_PARENT
        for index in drafted:
            position = start + len(emitted)
            is_next = self.window.parents[index] == node and position < len(self.truth)
            if is_next and self.window.token_ids[index] == self.truth[position]:
                node = index
                emitted.append(self.window.token_ids[index])
        end = start + len(emitted)
        emitted.extend(self.truth[end : end + 1])
        self.output.extend(emitted)
        self.num_passes += 1
