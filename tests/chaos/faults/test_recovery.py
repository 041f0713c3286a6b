"""How long services took to recover is found from faults and answers."""

from tests.chaos.faults.injector import Injected
from tests.chaos.faults.recovery import all_going_seconds, first_token_seconds, report_recovery
from tests.chaos.faults.schedule import Fault, FaultKind
from tests.chaos.load.case import Case
from tests.chaos.load.client import Outcome

STREAMED = Case("plain-1", "/v1/completions", {"stream": True})
WHOLE = Case("plain-2", "/v1/completions", {})


def outcome(began: float, ended: float, *times: float, case: Case = STREAMED) -> Outcome:
    return Outcome(case, began, ended, times=list(times))


def fault(began: float) -> Injected:
    return Injected(Fault(0.0, 1.0, FaultKind.KILL, "worker-1"), began, began + 1)


def test_the_first_token_may_come_at_any_request() -> None:
    outcomes = [outcome(0, 20, 9, 14), outcome(11, 20, 12.5)]
    assert first_token_seconds(fault(10), outcomes) == 2.5
    assert first_token_seconds(fault(30), outcomes) is None


def test_all_are_going_when_the_last_one_is() -> None:
    outcomes = [outcome(0, 20, 9, 14), outcome(5, 16, 8), outcome(11, 40, 39)]
    outcomes.append(outcome(0, 99, case=WHOLE))
    assert all_going_seconds(fault(10), outcomes) == 6
    assert all_going_seconds(fault(50), outcomes) is None


def test_the_report_groups_by_kind_and_role() -> None:
    outcomes = [outcome(0, 20, 9, 14, 17)]
    report = report_recovery([fault(10), fault(15)], outcomes)
    assert report == {
        "kill worker": {"faults": 2, "first_token_s": [3.0, 4.0], "all_going_s": [3.0, 4.0]}
    }
