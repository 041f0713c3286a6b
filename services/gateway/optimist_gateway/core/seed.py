"""A seed for every choice of a request."""

# The odd increment of SplitMix64 (Steele, Lea and Flood, 2014), the golden ratio's share of 2**64.
_INCREMENT = 0x9E3779B97F4A7C15


def choice_seed(seed: int, index: int) -> int:
    """Returns the seed of choice `index`: that of the request for the first choice.

    The others differ from each other, and from all choices of requests with seeds close by.

    Args:
        seed: The request's, int64.
        index: The choice's number, from 0.
    """
    return (seed + index * _INCREMENT + 2**63) % 2**64 - 2**63
