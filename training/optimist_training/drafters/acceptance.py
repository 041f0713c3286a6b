"""How many drafts a target would accept, worked out from whole sequences."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from optimist_training.data.examples import Example, batches
from optimist_training.drafters.target import Lesson, Target, Trainee, ahead

_BATCH_TOKENS = 4096


@dataclass(slots=True)
class Acceptance:
    """Counts of decoding with chains of at most `depth` drafts."""

    depth: int
    num_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    by_depth: list[list[int]] = field(default_factory=list)
    """Tried and accepted drafts at each level of the chain."""

    def report(self) -> dict[str, object]:
        """Returns the figures as JSON has them."""
        passes = max(self.num_passes, 1)
        return {
            "depth": self.depth,
            "accepted_per_pass": round(self.num_accepted / passes, 3),
            "tokens_per_pass": round(1 + self.num_accepted / passes, 3),
            "acceptance_rate": round(self.num_accepted / max(self.num_drafted, 1), 4),
            "accepted_by_place": [round(ok / max(n, 1), 4) for n, ok in self.by_depth],
        }


def measure(
    trainee: Trainee, target: Target, examples: Iterable[Example], depths: tuple[int, ...] = (4, 8)
) -> list[Acceptance]:
    """Decodes the completions as a worker does, pass by pass, with chains of each depth.

    The sequences are run once: what is drafted after accepted drafts is what would be drafted
    after those tokens. Where the target itself would not go on as the example does, its chain
    ends, and the next pass starts after it.
    """
    results = [Acceptance(depth, by_depth=[[0, 0] for _ in range(depth)]) for depth in depths]
    for batch in batches(iter(examples), _BATCH_TOKENS):
        lesson = target.teach(batch, trainee.layers)
        with torch.no_grad():
            agreement = trainee.agreement(lesson, max(depths))
        lengths = _accepted(lesson, agreement)
        for row in range(len(lengths)):
            positions = lesson.wanted[row].nonzero()[:, 0].tolist()
            for result in results:
                _walk(result, lengths[row].tolist(), positions[0], positions[-1])
    return results


def _accepted(lesson: Lesson, agreement: Tensor) -> Tensor:
    """Returns the length of the longest accepted chain at every position, `[batch, length]`."""
    alive = torch.ones_like(lesson.wanted)
    lengths = torch.zeros_like(lesson.said)
    for level in range(agreement.shape[2]):
        # The draft before this one was the target's token; so the sequence must have it too.
        followed = ahead(lesson.token_ids, level + 1) == ahead(lesson.said, level)
        alive = alive & agreement[:, :, level] & ahead(lesson.wanted, level + 1) & followed
        lengths += alive
    return lengths


def _walk(result: Acceptance, lengths: list[int], first: int, last: int) -> None:
    position = first
    while position < last:
        drafted = min(result.depth, last - position)
        accepted = min(lengths[position], drafted)
        result.num_passes += 1
        result.num_drafted += drafted
        result.num_accepted += accepted
        for level in range(min(accepted + 1, drafted)):
            result.by_depth[level][0] += 1
            result.by_depth[level][1] += level < accepted
        position += accepted + 1
