"""Where drafts come from, and what they were worth."""

import numpy as np

from optimist.common.v1 import draft_source_pb2
from optimist_common.columns import Int32Column
from optimist_common.drafts import DraftSource
from optimist_common.observing.metrics import NUM_POSITIONS, DraftMetrics


def ints(*values: int) -> Int32Column:
    return np.array(values, np.int32)


def test_totals_are_those_of_all_sources() -> None:
    metrics = DraftMetrics("test_totals", "step")
    sources = ints(DraftSource.PREDICTION, DraftSource.NGRAM, DraftSource.TARGET)
    metrics.observe(sources, ints(30, 4, 0), ints(20, 1, 0), ints(21, 2, 1))
    metrics.observe(sources[:1], ints(3), ints(0), ints(1))
    totals = metrics.totals()
    assert (totals.num_rows, totals.num_drafted, totals.num_accepted) == (3, 37, 21)
    # Those after the last position are not counted one by one.
    assert totals.num_accepted_at == [2, *[1] * (NUM_POSITIONS - 1)]


def test_numbers_of_draft_sources_are_those_of_the_contract() -> None:
    names: dict[int, str] = {source: source.name for source in DraftSource}
    names[0] = "UNSPECIFIED"
    contract = draft_source_pb2.DraftSource.items()
    assert dict(contract) == {f"DRAFT_SOURCE_{name}": int(n) for n, name in names.items()}
