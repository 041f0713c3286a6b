"""Which layers each stage of a pipeline has."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage stands in its pipeline."""

    index: int
    num_stages: int

    @property
    def is_first(self) -> bool:
        """Whether it is fed tokens."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it has the logits, and says what comes of drafts."""
        return self.index == self.num_stages - 1


def split_layers(costs: Sequence[int], head_cost: int, num_stages: int) -> list[range]:
    """Divides layers such that the slowest stage is as fast as can be.

    A step of the pipeline takes as long as its slowest stage. What stands before the first layer is
    a lookup and costs nothing.

    Args:
        costs: What each layer takes, such as its number of weights.
        head_cost: The same of what comes behind the last layer.
        num_stages: At most the number of layers.

    Returns:
        The layers of each stage, at least one.
    """
    num_layers = len(costs)
    # least[n]: the least cost of the slowest stage if the layers from n on are all there are.
    least = [sum(costs[first:]) + head_cost for first in range(num_layers)]
    ends = [[num_layers] * num_layers]
    for stages in range(2, num_stages + 1):
        best = [0] * num_layers
        end_of = [0] * num_layers
        for first in range(num_layers - stages + 1):
            options = [
                (max(sum(costs[first:end]), least[end]), -end)
                for end in range(first + 1, num_layers - stages + 2)
            ]
            # Of equally good ones the one that leaves the last stage, which also samples, least.
            best[first], end = min(options)
            end_of[first] = -end
        least = best
        ends.append(end_of)
    spans, first = [], 0
    for stages in range(num_stages, 0, -1):
        end = ends[stages - 1][first]
        spans.append(range(first, end))
        first = end
    return spans
