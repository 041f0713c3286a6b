"""Where in a request's own text the output is likely to go on from.

Prompt lookup (Saxena, "Prompt lookup decoding", 2023; Yang et al., "Inference with reference",
arXiv 2304.04487) with a cursor: an answer that copies mostly goes on where it has copied last, so
of several places that look alike the one next to the cursor is taken, and where none does a token
that differed is taken to stand for the source's, and the copy to go on behind it.
"""

import torch

LONGEST_MATCH = 8
"""Last tokens that are compared; more tell nothing new."""


def find_sources(
    token_ids: torch.Tensor, lengths: torch.Tensor, cursors: torch.Tensor
) -> torch.Tensor:
    """Finds the place whose token probably comes next.

    Args:
        token_ids: Prompt and verified output, `[num_rows, width]`; what lies behind the length of
            a row means nothing.
        lengths: `[num_rows]`.
        cursors: Place from which each row would go on copying; -1 if it has not copied yet.

    Returns:
        Places, int64 `[num_rows]`; -1 where there is none.
    """
    width = token_ids.shape[1]
    places = torch.arange(width, device=token_ids.device)
    # Entry p: how many tokens before place p are the row's last ones.
    matched = torch.zeros_like(token_ids, dtype=torch.int64)
    is_equal = (places > 0) & (places < lengths[:, None])
    for back in range(1, LONGEST_MATCH + 1):
        last = token_ids.gather(1, (lengths - back).clamp(min=0)[:, None])
        shifted = torch.nn.functional.pad(token_ids, (back, 0))[:, :width]
        is_equal = is_equal & (shifted == last) & (places >= back)
        matched += is_equal
    # A longer match counts for more than any distance; of equal ones the nearest is taken.
    distance = torch.where(cursors[:, None] >= 0, (places - cursors[:, None]).abs(), places)
    scores = torch.where(matched > 0, (matched << 32) - distance, -1)
    best, found = scores.max(1)
    fallback = torch.where(cursors < lengths, cursors, -1)
    return torch.where(best >= 0, found, fallback)
