"""Hashes of KV blocks, by which equal beginnings of requests are found."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from optimist_scheduler.core.values.arrays import Int32Array


def hash_blocks(
    token_ids: Sequence[int] | Int32Array,
    block_size: int,
    salt: str,
    previous: Sequence[bytes] = (),
) -> list[bytes]:
    """Hashes the full blocks of a sequence, each together with all that is before it.

    The hash of a block is sha256(hash of the block before || its tokens, int32 little-endian);
    before the first block stands sha256(salt, UTF-8). Equal hashes thus mean equal tokens from the
    beginning on, so equal keys and values, and the same salt. Chained block hashes are
    vLLM's method (automatic prefix caching); that the hash is a cryptographic one keeps anybody
    from building a prompt that meets the blocks of another.

    Args:
        token_ids: The sequence from its beginning [num_tokens].
        block_size: Tokens per block.
        salt: Sequences of different salts have no hash in common.
        previous: Hashes of the first blocks, known already; they are not computed again.

    Returns:
        The hashes, those of `previous` first [num_tokens // block_size].

    Raises:
        ValueError: `previous` has more hashes than `token_ids` has full blocks.
        OverflowError: A token id does not fit int32.
    """
    num_full = len(token_ids) // block_size
    if len(previous) > num_full:
        raise ValueError(f"previous: {len(previous)} hashes, the tokens fill {num_full} blocks")
    hashes = list(previous)
    parent = hashes[-1] if hashes else sha256(salt.encode()).digest()
    new_token_ids = token_ids[len(hashes) * block_size : num_full * block_size]
    tokens = np.asarray(new_token_ids, np.dtype("<i4")).tobytes()
    for start in range(0, len(tokens), 4 * block_size):
        parent = sha256(parent + tokens[start : start + 4 * block_size]).digest()
        hashes.append(parent)
    return hashes
