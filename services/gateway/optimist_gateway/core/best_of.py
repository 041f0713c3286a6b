"""The likeliest of several answers."""

from collections.abc import Sequence


def best_of(mean_logprobs: Sequence[float], num_wanted: int) -> list[int]:
    """Returns the indices of the likeliest answers, the likeliest first.

    Args:
        mean_logprobs: The log-probability per token of each answer; of equal ones the first wins.
        num_wanted: How many are wanted.
    """
    by_rank = sorted(range(len(mean_logprobs)), key=lambda index: -mean_logprobs[index])
    return by_rank[:num_wanted]
