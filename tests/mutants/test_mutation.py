import pytest

from tests.mutants.__main__ import RULES, find_functions
from tests.mutants.mutation import mutants
from tests.scheduler.situation import Situation


class Counter:
    """What is changed."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        if number > 1 and self.total:
            self.total += number
        return self.total


def test_operators_conditions_numbers_and_statements_are_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    totals = {}
    for mutant in mutants(Counter.add):
        with monkeypatch.context() as patch:
            patch.setattr(Counter.add, "__code__", mutant.code)
            counters = [Counter(), Counter()]
            counters[1].total = 1
            totals[mutant.name.removeprefix("Counter.add: ")] = [
                [counter.add(number) for number in (1, 2)] for counter in counters
            ]
    assert totals == {
        "self.total += number -> dropped": [[0, 0], [1, 1]],
        "if number > 1 and self.total -> True": [[1, 3], [2, 4]],
        "if number > 1 and self.total -> False": [[0, 0], [1, 1]],
        "number > 1 and self.total -> Or": [[0, 2], [2, 4]],
        "self.total += number -> Sub": [[0, 0], [1, -1]],
        "number > 1 -> GtE": [[0, 0], [2, 4]],
        "number > 1: 1 -> 2": [[0, 0], [1, 1]],
    }


def test_every_rule_has_mutants() -> None:
    for function in find_functions(RULES):
        assert next(mutants(function)).code != function.__code__


def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = find_functions(("_take_back",))
    monkeypatch.setattr(rule, "__code__", next(mutants(rule)).code)
    situation = Situation()
    situation.add_predicted(0, [1, 2], 20)
    situation.propose(0, wrong_at=2)
    with pytest.raises((AssertionError, LookupError, ValueError, RuntimeError)):
        situation.finish()
