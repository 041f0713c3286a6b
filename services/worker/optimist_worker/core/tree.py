"""Token trees: depths, ancestors and paths of all rows at once.

A row's nodes are the indices 0 to K - 1, parents before children; node -1 is the token before
them. Whatever follows the parents up to the top takes log2(K) steps of pointer doubling (Wyllie,
"The complexity of parallel computations", 1979). `parents` None stands for chains, of which every
node's parent is the one before it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def chain_parents(num_rows: int, num_nodes: int, device: torch.device) -> Tensor:
    """Returns the parents of chains, int64 `[num_rows, num_nodes]`."""
    return torch.arange(-1, num_nodes - 1, device=device).expand(num_rows, -1)


def node_depths(parents: Tensor) -> Tensor:
    """Counts the nodes from the top down to each node, itself included.

    Args:
        parents: Int64 `[R, K]`.

    Returns:
        Int64 `[R, K]`, 1 for the children of node -1. A node's token has the position
        `num_known_tokens - 1 + depth`.
    """
    depths = _with_top(torch.ones_like(parents), 0)
    for jump in _jumps(parents):
        depths = depths + depths.gather(1, jump)
    return depths[:, 1:]


def ancestor_bits(parents: Tensor) -> Tensor:
    """Returns each node's ancestors, itself included, as bits: bit i is node i.

    Args:
        parents: Int64 `[R, K]`, K at most 64.

    Returns:
        Int64 `[R, K]`; with 64 nodes the last one's bit is the sign.
    """
    nodes = torch.arange(parents.shape[1], device=parents.device)
    bits = _with_top(torch.ones_like(parents) << nodes, 0)
    for jump in _jumps(parents):
        bits = bits | bits.gather(1, jump)
    return bits[:, 1:]


def ancestor_matrix(parents: Tensor) -> Tensor:
    """Returns which nodes lie on the way to each node.

    Args:
        parents: Int64 `[R, K]`.

    Returns:
        Bool `[R, 1 + K, K]`: in row 1 + i node i and its ancestors; row 0, of node -1, is empty.
    """
    num_nodes = parents.shape[1]
    itself = torch.eye(1 + num_nodes, dtype=torch.bool, device=parents.device)[:, 1:]
    matrix = itself.expand(parents.shape[0], -1, -1)
    for jump in _jumps(parents):
        matrix = matrix | matrix.gather(1, jump[:, :, None].expand(-1, -1, num_nodes))
    return matrix


def holds_from_top(flags: Tensor, parents: Tensor | None) -> Tensor:
    """Returns for which nodes a flag holds of the node itself and all its ancestors.

    Args:
        flags: Bool `[R, K]`.
        parents: Int64 `[R, K]`, or None for chains.

    Returns:
        Bool `[R, K]`.
    """
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
    """Lists the nodes of a path from the top down.

    Args:
        chosen: The nodes of the path, bool `[R, K]`.
        depths: Int64 `[R, K]`.

    Returns:
        Int64 `[R, K]`: the node of depth 1, of depth 2 and so on, after the last one 0.
    """
    num_rows, num_nodes = chosen.shape
    nodes = torch.arange(num_nodes, device=chosen.device).expand(num_rows, -1)
    path = nodes.new_zeros((num_rows, 1 + num_nodes))
    # What is not on the path goes to place 0, which is cut off.
    return path.scatter_(1, torch.where(chosen, depths, 0), nodes)[:, 1:]


def _jumps(parents: Tensor) -> Iterator[Tensor]:
    """Yields pointers 1, 2, 4, ... generations up, int64 `[R, 1 + K]` with node -1 at place 0."""
    jump = _with_top(parents + 1, 0)
    for _ in range(parents.shape[1].bit_length()):
        yield jump
        jump = jump.gather(1, jump)


def _with_top(values: Tensor, top: int) -> Tensor:
    """Puts node -1's value before those of the nodes, `[R, 1 + K]`."""
    return torch.nn.functional.pad(values, (1, 0), value=top)
