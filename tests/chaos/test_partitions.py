"""Two of the partitions of `python -m tests.chaos partitions`, on hosts in network namespaces."""

from pathlib import Path

import pytest

from tests.chaos.namespaces import missing_for_namespaces
from tests.chaos.partitions import PARTITIONS, run_partitions

REASON = missing_for_namespaces()
WORKER_IS_AWAY = next(one for one in PARTITIONS if one.others == ("worker-1",))
NO_SCHEDULER_IS_REACHED = PARTITIONS[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(REASON), reason=REASON)
async def test_what_clients_see_of_partitions(tmp_path: Path) -> None:
    partitions = (WORKER_IS_AWAY, NO_SCHEDULER_IS_REACHED)
    report = await run_partitions(partitions, 14, 3, tmp_path)
    moved, refused = report["partitions"]
    assert moved["lost_shown"] == []
    assert moved["answers_equal"] == moved["requests"] > 0
    # Streams are told when nothing is left to wait for; whoever has no answer yet asks again.
    assert refused["wrong_shown"] == []
    assert refused["deadline_misses"] == 0
    assert refused["refused_and_asked_again"] + len(refused["told_unavailable_s"]) > 0
    assert report["not_back"] == []
    assert report["all_right"], report
