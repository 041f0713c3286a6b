"""The drafts of all rows of a step as tensors: padded with their paths, or flat and ragged.

A row's nodes are the indices 0 to K - 1, parents before children; node -1 is the token before
them. Whatever follows the parents up to the top takes log2(K) steps of pointer doubling (Wyllie,
"The complexity of parallel computations", 1979). `parents` None stands for chains, of which every
node's parent is the one before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from optimist_worker.core.operation import Operation


@dataclass(slots=True)
class Drafts:
    """R rows of at most K nodes; only the first `num_tokens` nodes of a row mean anything.

    A node is an index into its row. Node -1 is the row's last known token, which all of its drafts
    follow. What is padded must still be a valid index: any parent in [-1, K).
    """

    token_ids: Tensor
    """Int64 `[R, K]`."""
    num_tokens: Tensor
    """Nodes of each row, int64 `[R]`."""
    sources: Tensor
    """`DraftSource` of each row that has drafts, int64 `[R]`."""
    parents: Tensor | None = None
    """Each node's parent, int64 `[R, K]`, or None if all rows are chains.

    Parents come before their children, and siblings have different tokens.
    """
    max_siblings: int = 1
    """Most children that were drawn of any node, known to the host; 1 for chains."""
    probabilities: Tensor | None = None
    """The distribution from which each node was drawn, float32 `[R, K, V]`, or None if none was.

    Siblings are drawn in their order without replacement: the distribution of each leaves out those
    before it, and sums to 1. Whether a node is in the tree must not depend on what was drawn.
    """
    is_certain: Tensor | None = None
    """Rows whose nodes were not drawn by chance, bool `[R]`; their probabilities do not count.

    None: all rows if there are no probabilities, else none.
    """

    positions: Tensor | None = None
    """Position in its request's predictions of each row's first draft if it has any, -1 if it was
    read elsewhere, int64 `[R]`; None: of all rows."""

    is_form: Tensor | None = None
    """Which nodes the grammar of a row's output has brought, bool `[R, K]`; None: none. On no path
    do other nodes come after them."""

    known_depths: Tensor | None = field(default=None, init=False, repr=False)
    """What `depths` are, if they have been found."""

    @property
    def num_rows(self) -> int:
        """R."""
        return self.token_ids.shape[0]

    @property
    def width(self) -> int:
        """K."""
        return self.token_ids.shape[1]

    @property
    def is_node(self) -> Tensor:
        """Which indices hold a draft rather than padding, bool `[R, K]`."""
        nodes = torch.arange(self.width, device=self.token_ids.device)
        return nodes < self.num_tokens[:, None]

    @property
    def depths(self) -> Tensor:
        """Nodes from the top down to each node, itself included, int64 `[R, K]`; found once."""
        if self.known_depths is None:
            if self.parents is None:
                nodes = torch.arange(1, 1 + self.width, device=self.token_ids.device)
                self.known_depths = nodes.expand(self.num_rows, -1)
            else:
                self.known_depths = node_depths(self.parents)
        return self.known_depths

    @property
    def is_tree(self) -> Tensor:
        """Which rows are no chains, bool `[R]`."""
        if self.parents is None:
            return torch.zeros_like(self.num_tokens, dtype=torch.bool)
        chain = chain_parents(self.num_rows, self.width, self.parents.device)
        return ((self.parents != chain) & self.is_node).any(1)

    def trim(self, width: int) -> "Drafts":
        """Leaves out what is after the widest row, which has at most `width` nodes."""
        if self.width <= width:
            return self
        parents, probabilities, is_form = self.parents, self.probabilities, self.is_form
        return replace(
            self,
            token_ids=self.token_ids[:, :width],
            parents=None if parents is None else parents[:, :width],
            probabilities=None if probabilities is None else probabilities[:, :width],
            is_form=None if is_form is None else is_form[:, :width],
        )


def count_on_path(flags: Tensor, path: Tensor | None, number: Tensor) -> Tensor:
    """Counts for how many of the first `number` (`[R]`) nodes of each path a flag holds, `[R]`.

    Flags are of nodes, bool `[R, K]`, and paths nodes, int64 `[R, K]`; None stands for chains.
    """
    nodes = torch.arange(flags.shape[1], device=flags.device)
    on_path = flags if path is None else flags.gather(1, path)
    return (on_path & (nodes < number[:, None])).sum(1)


def no_drafts(num_rows: int, device: torch.device) -> Drafts:
    """Returns the drafts of rows that have none; K is 0."""
    zeros = torch.zeros(num_rows, dtype=torch.int64, device=device)
    return Drafts(zeros[:, None][:, :0], zeros, zeros)


def chain_parents(num_rows: int, num_nodes: int, device: torch.device) -> Tensor:
    """Returns the parents of chains, int64 `[num_rows, num_nodes]`."""
    return torch.arange(-1, num_nodes - 1, device=device).expand(num_rows, -1)


def node_depths(parents: Tensor) -> Tensor:
    """Counts the nodes from the top down to each node, itself included, int64 `[R, K]`.

    The children of node -1 have 1: a node's token has the position `num_known_tokens - 1 + depth`.
    """
    depths = _with_top(torch.ones_like(parents), 0)
    for jump in _jumps(parents):
        depths = depths + depths.gather(1, jump)
    return depths[:, 1:]


def ancestor_bits(parents: Tensor) -> Tensor:
    """Returns the ancestors of each of at most 64 nodes, itself included, as bits: bit i is node i.

    Int64 `[R, K]`; the last one's bit is the sign.
    """
    nodes = torch.arange(parents.shape[1], device=parents.device)
    bits = _with_top(torch.ones_like(parents) << nodes, 0)
    for jump in _jumps(parents):
        bits = bits | bits.gather(1, jump)
    return bits[:, 1:]


def ancestor_matrix(parents: Tensor) -> Tensor:
    """Returns which nodes lie on the way to each node, bool `[R, 1 + K, K]`.

    In row 1 + i are node i and its ancestors; row 0, of node -1, is empty.
    """
    num_nodes = parents.shape[1]
    itself = torch.eye(1 + num_nodes, dtype=torch.bool, device=parents.device)[:, 1:]
    matrix = itself.expand(parents.shape[0], -1, -1)
    for jump in _jumps(parents):
        matrix = matrix | matrix.gather(1, jump[:, :, None].expand(-1, -1, num_nodes))
    return matrix


def holds_from_top(flags: Tensor, parents: Tensor | None) -> Tensor:
    """Returns for which nodes a flag holds of the node itself and all its ancestors, `[R, K]`."""
    if parents is None:
        return flags.cumprod(1).bool()
    held = _with_top(flags, True)
    for jump in _jumps(parents):
        held = held & held.gather(1, jump)
    return held[:, 1:]


def sibling_ranks(parents: Tensor) -> Tensor:
    """Counts the siblings before each node, int64 `[R, K]`."""
    same = parents[:, :, None] == parents[:, None, :]
    return same.tril(-1).sum(2)


def nodes_by_depth(chosen: Tensor, depths: Tensor) -> Tensor:
    """Lists the chosen nodes of a path from the top down, int64 `[R, K]`; after the last one 0."""
    num_rows, num_nodes = chosen.shape
    nodes = torch.arange(num_nodes, device=chosen.device).expand(num_rows, -1)
    path = nodes.new_zeros((num_rows, 1 + num_nodes))
    # What is not on the path goes to index 0, which is cut off.
    return path.scatter_(1, torch.where(chosen, depths, 0), nodes)[:, 1:]


def _jumps(parents: Tensor) -> Iterator[Tensor]:
    """Yields pointers 1, 2, 4, ... generations up, int64 `[R, 1 + K]` with node -1 at index 0."""
    jump = _with_top(parents + 1, 0)
    for _ in range(parents.shape[1].bit_length()):
        yield jump
        jump = jump.gather(1, jump)


def _with_top(values: Tensor, top: int) -> Tensor:
    """Puts node -1's value before those of the nodes, `[R, 1 + K]`."""
    return torch.nn.functional.pad(values, (1, 0), value=top)


def merge_drafts(num_tokens: Tensor, windows: Drafts, drafted: Drafts) -> Drafts:
    """Takes each row's drafts from its window, or if that has none, the drafter's.

    Of windows a row has `num_tokens`, `[R]`. Probabilities are left out.
    """
    width, from_window = max(windows.width, drafted.width), num_tokens > 0

    def choose(window: Tensor, other: Tensor, empty: int = 0) -> Tensor:
        wide = _widen(window, width, empty), _widen(other, width, empty)
        return torch.where(from_window[:, None], *wide)

    parents = None
    if windows.parents is not None or drafted.parents is not None:
        parents = choose(_parents(windows), _parents(drafted), -1)
    return Drafts(
        token_ids=choose(windows.token_ids, drafted.token_ids),
        num_tokens=torch.where(from_window, num_tokens, drafted.num_tokens),
        sources=torch.where(from_window, windows.sources, drafted.sources),
        parents=parents,
        max_siblings=max(windows.max_siblings, drafted.max_siblings),
        positions=None
        if drafted.positions is None
        else torch.where(from_window, -1, drafted.positions),
    )


MERGE = Operation("merge", merge_drafts, "optimist_worker.core.batch.window_kernel:merge_drafts")


def _widen(values: Tensor, width: int, empty: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=empty)


def _parents(drafts: Drafts) -> Tensor:
    if drafts.parents is not None:
        return drafts.parents
    return chain_parents(drafts.num_rows, drafts.width, drafts.token_ids.device)


@dataclass(slots=True)
class Ragged:
    """Which row, and which of its elements, each element of a flat tensor is."""

    starts: torch.Tensor
    """First element of each row, and after the last one; int64 `[num_rows + 1]`."""
    rows: torch.Tensor
    """Row of each element, int64 `[size]`; of padding, some row."""
    offsets: torch.Tensor
    """Index in its row, int64 `[size]`; of padding, 0."""
    is_real: torch.Tensor
    """False for padding, bool `[size]`."""
    is_exact: bool
    """Whether it is known to the host that there is no padding."""

    @property
    def size(self) -> int:
        """Number of elements, padding included."""
        return len(self.rows)


def lay_out(lengths: torch.Tensor, size: int) -> Ragged:
    """Lays rows out one after the other; what `size` has beyond them is padding at the end."""
    if lengths.device.type == "cpu" and int(lengths.sum()) == size:
        return _lay_out_exactly(lengths)
    ends = lengths.cumsum(0)
    starts = torch.cat([torch.zeros_like(ends[:1]), ends])
    indices = torch.arange(size, device=lengths.device)
    rows = torch.searchsorted(ends, indices, right=True)
    is_real = rows < len(lengths)
    rows = rows.clamp(max=len(lengths) - 1)
    offsets = torch.where(is_real, indices - starts[rows], 0)
    return Ragged(starts, rows, offsets, is_real, is_exact=False)


def _lay_out_exactly(lengths: torch.Tensor) -> Ragged:
    """Lays rows out without padding, with NumPy, whose calls take a fifth of the time."""
    counts = lengths.numpy()
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    rows = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(rows)) - starts[rows]
    is_real = np.ones(len(rows), np.bool_)
    return Ragged(
        starts=torch.from_numpy(starts),
        rows=torch.from_numpy(rows),
        offsets=torch.from_numpy(offsets),
        is_real=torch.from_numpy(is_real),
        is_exact=True,
    )
