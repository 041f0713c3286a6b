"""Short numbers of a step's drafts and outcome, by which ranks notice that they have diverged."""

import zlib

import numpy as np

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import StepResult

DIGEST_BYTES = 4


def digest(result: StepResult) -> bytes:
    """Returns the checksum of everything that decides how rows go on, DIGEST_BYTES long.

    Times and the texts of errors differ between ranks that agree.
    """
    columns = (
        result.slots,
        result.lengths,
        result.num_emitted_tokens,
        result.token_ids,
        result.num_drafted_tokens,
        result.num_accepted_tokens,
        result.draft_sources,
        result.window_nodes,
        result.accepted_nodes,
        np.array(sorted(result.errors), np.int32),
    )
    checksum = zlib.crc32(f"{result.sequence} {result.repeat} {result.num_tokens}".encode())
    for column in columns:
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
