"""The figures that schedulers answer to GetStats, together."""

from collections.abc import Sequence
from itertools import zip_longest

from optimist.scheduler.v1.scheduler_pb2 import Stats


def add_stats(several: Sequence[Stats]) -> Stats | None:
    """Returns the sum, None of nothing; what is so is so at every scheduler."""
    if not several:
        return None
    total = Stats()
    for field in Stats.DESCRIPTOR.fields:
        values = [getattr(one, field.name) for one in several]
        if isinstance(values[0], bool):
            setattr(total, field.name, all(values))
        elif isinstance(values[0], int):
            setattr(total, field.name, sum(values))
        else:
            columns = zip_longest(*values, fillvalue=0)
            getattr(total, field.name).extend(sum(column) for column in columns)
    return total


def kv_usage(stats: Stats) -> float:
    """Returns the share of KV blocks that requests hold, 0 to 1."""
    return 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
