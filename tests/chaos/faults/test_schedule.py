"""A schedule of faults has every kind, and leaves what is needed to go on."""

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults.schedule import MAX_AT_ONCE, Fault, FaultKind, make_schedule

EDGES = ["gateway-1>scheduler-1", "gateway-1>scheduler-2", "scheduler-1>worker-1"]
EDGES += ["proposer-1>redis"]
PROCESSES = ["gateway-1", "scheduler-1", "scheduler-2", "worker-1", "redis"]


def draw(seed: int, seconds: float = 600.0, pause: float = 4.0) -> list[Fault]:
    return make_schedule(seed, seconds, EDGES, PROCESSES, pause)


def test_a_long_schedule_has_every_kind_in_every_role() -> None:
    seen = {(fault.kind, fault.role) for fault in draw(5, pause=2.0)}
    edges = {"gateway>scheduler", "scheduler>worker", "proposer>redis"}
    processes = {"gateway", "scheduler", "worker", "redis"}
    assert seen == {
        (kind, role) for kind in FaultKind for role in (processes if kind.is_of_process else edges)
    }


@given(st.integers(0, 10_000), st.floats(0.1, 20.0))
def test_faults_are_ordered_bounded_and_few_at_once(seed: int, pause: float) -> None:
    faults = draw(seed, 120.0, pause)
    assert all(0 <= fault.begin <= 120 for fault in faults)
    assert faults == sorted(faults, key=lambda fault: fault.begin)
    for fault in faults:
        assert fault.place in (PROCESSES if fault.kind.is_of_process else EDGES)
        during = [one for one in faults if one.begin <= fault.begin < one.end]
        assert len(during) <= MAX_AT_ONCE
        assert sum(one.place == fault.place for one in during) <= 1
