"""The verdict on the rows of a pass in one launch: a program follows the drafts of each."""

import torch
import triton
import triton.language as tl

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.drafts import Drafts, Ragged


def reach_verdict(
    choices: torch.Tensor,
    largest: torch.Tensor,
    left: torch.Tensor | None,
    nodes: Ragged,
    drafts: Drafts,
) -> Verdict:
    """Is `verdict.reach_verdict`."""
    number, width = drafts.num_rows, drafts.width
    has_tree = drafts.parents is not None and width > 0
    token_ids = choices.new_empty((number, 1 + width))
    num_accepted = choices.new_empty(number)
    path = choices.new_empty((number, width)) if has_tree else None
    is_sound, is_stuck = choices.new_empty((2, number), dtype=torch.bool).unbind()
    with torch.cuda.device_of(choices):
        judge_row[(number,)](
            choices,
            largest,
            largest if left is None else left,
            nodes.starts,
            drafts.token_ids.contiguous(),
            drafts.num_tokens,
            choices if drafts.parents is None else drafts.parents.contiguous(),
            drafts.depths.contiguous() if has_tree else choices,
            token_ids,
            num_accepted,
            choices if path is None else path,
            is_sound,
            is_stuck,
            width,
            triton.next_power_of_2(1 + width),
            has_tree,
            max(width, 1).bit_length(),
            left is not None,
        )
    return Verdict(token_ids, num_accepted, path, is_sound, None if left is None else is_stuck)


@triton.jit
def judge_row(  # noqa: PLR0915 - a program is one function
    choices,
    largest,
    left,
    starts,
    draft_ids,
    num_drafts,
    parents,
    depths,
    token_ids,
    num_accepted,
    path,
    is_sound,
    is_stuck,
    width,
    tile: tl.constexpr,
    has_tree: tl.constexpr,
    num_jumps: tl.constexpr,
    is_limited: tl.constexpr,
):
    """Judges one row; the grid is `[num_rows]`."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, tile)
    start = tl.load(starts + row)
    number = tl.load(starts + row + 1) - start
    most = tl.load(largest + start + lane, mask=lane < number, other=0.0)
    is_bad = (most != most) | (tl.abs(most) == float("inf"))
    sound = tl.max(is_bad.to(tl.int32), 0) == 0
    stuck = sound & False
    drafted = tl.load(num_drafts + row)
    at = row * width + lane
    token = tl.load(draft_ids + at, mask=lane < width, other=0)
    # Element 0 comes before a chain's first node.
    element = lane.to(tl.int64)
    if has_tree:
        element = tl.load(parents + at, mask=lane < width, other=-1) + 1
    before = tl.load(choices + start + element, mask=element < number, other=0)
    is_open = lane >= 0
    if is_limited:
        limit = tl.load(left + start + 1 + lane, mask=lane + 1 < number, other=0.0)
        is_open = (limit != float("-inf")) | (not sound)
        first = tl.load(left + start, mask=number > 0, other=0.0)
        is_first_open = (first != float("-inf")) | (not sound)
        stuck = not is_first_open
        sound = sound & is_first_open
    accepted = (token == before) & is_open & (lane < drafted) & sound
    if has_tree:
        held = accepted.to(tl.int32)
        jump = (element - 1).to(tl.int32)
        for _ in tl.static_range(num_jumps):
            above, goes = tl.maximum(jump, 0), jump >= 0
            held &= tl.where(goes, tl.gather(held, above, 0), 1)
            jump = tl.where(goes, tl.gather(jump, above, 0), -1)
        accepted = held > 0
        count = tl.sum(held, 0)
        # Nodes come after their parents.
        last = tl.max(tl.where(accepted, lane + 1, 0), 0)
        place = tl.load(depths + at, mask=lane < width, other=1) - 1
        tl.store(path + row * width + place, lane.to(tl.int64), mask=accepted)
        none = tl.zeros([tile], tl.int64)
        tl.store(path + at, none, mask=(lane >= count) & (lane < width))
    else:
        count = tl.min(tl.where(accepted, tile, lane), 0)
        accepted = lane < count
        last, place = count, lane.to(tl.int64)
    bonus = tl.load(choices + start + last, mask=last < number, other=0)
    out = token_ids + row * (1 + width)
    tl.store(out + place, token, mask=accepted)
    rest = tl.where(lane == count, bonus, 0)
    tl.store(out + lane, rest, mask=(lane >= count) & (lane <= width))
    tl.store(num_accepted + row, count.to(tl.int64))
    tl.store(is_sound + row, sound)
    tl.store(is_stuck + row, stuck)
