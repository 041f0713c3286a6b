"""Each rule of the counters, the blocks and the fences is needed: without it a test fails.

A rule is changed in the source of its function, and random commands, random traffic or one test
that is named have to notice.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from optimist_scheduler.core.requests import table as requests
from optimist_scheduler.core.results import check, deliver, reports, settle
from optimist_scheduler.core.schedule import ahead, rows
from tests.scheduler.core import (
    test_known_bugs_of_ends,
    test_pipeline,
    test_prefix_caching,
    test_scheduler,
    test_values,
)
from tests.scheduler.core.requests import test_following
from tests.scheduler.core.results import test_telling
from tests.scheduler.core.schedule import test_prescheduling, test_shares
from tests.scheduler.core.test_random_commands import SchedulerMachine
from tests.scheduler.core.width import test_drafter_rows
from tests.scheduler.core.windows import test_trees
from tests.scheduler.rules import COMMANDS, LEASES, PREFIXES, SOURCES, Rule, State
from tests.scheduler.traffic import run_leases, run_prefixes, run_sources

SETTINGS = settings(
    max_examples=400,
    stateful_step_count=60,
    phases=(Phase.generate,),
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def change(
    monkeypatch: pytest.MonkeyPatch, owner: ModuleType | type, name: str, old: str, new: str
) -> None:
    """Replaces one expression of a function, everywhere the function is known."""
    function: Callable[..., Any] = vars(owner)[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{name} does not say {old!r} once"
    scope = dict(vars(inspect.getmodule(function)))
    exec(compile(source.replace(old, new), inspect.getfile(function), "exec"), scope)
    places = [owner] if isinstance(owner, type) else core_modules()
    for place in places:
        if vars(place).get(name) is function:
            monkeypatch.setattr(place, name, scope[name])


def core_modules() -> list[ModuleType]:
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("optimist_scheduler.core.")
    ]


def commands() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=SETTINGS)


def leases() -> None:
    run_leases(40)


def prefixes() -> None:
    run_prefixes(40)


def sources() -> None:
    run_sources(25)


NAMED: dict[str, tuple[Rule, Callable[[], None]]] = {
    "prompts are told of again": (
        (reports, "report_logprobs", "min(request.num_reported_tokens + 1, end) - first", "0"),
        lambda: test_telling.test_a_prompt_is_told_of_once_though_the_worker_was_lost(1, 2),
    ),
    "one plan in flight counts towards the length limit": (
        (
            rows,
            "_find_rows_to_run",
            "rows.num_emits_in_flight <",
            "np.minimum(rows.num_emits_in_flight, 1) <",
        ),
        lambda: test_known_bugs_of_ends.test_max_tokens_reached_in_flight(3, False, 7),
    ),
    "a request is in two stages at once": (
        (rows, "_find_rows_to_run", "<= 0", "<= 1"),
        lambda: test_pipeline.test_a_request_is_in_one_stage_at_a_time(2, False, 0),
    ),
    "one stage takes all rows": (
        (rows, "_find_rows_to_run", "-(-len(view.running) // num_stages)", "len(view.running)"),
        lambda: test_pipeline.test_an_odd_row_makes_one_stage_wider(),
    ),
    "drafts behind a part of a prompt": (
        (rows, "_share_budget", "drafts = drafts * (known == left)", "pass"),
        lambda: test_shares.test_a_prompt_that_is_cut_off_takes_no_drafts_from_others(),
    ),
    "drafts beyond the length limit": (
        (
            rows,
            "_share_budget",
            "np.minimum(rows.window_end, rows.max_length - 1)",
            "rows.window_end",
        ),
        lambda: test_known_bugs_of_ends.test_a_prediction_longer_than_what_may_still_be_generated(
            1, 7
        ),
    ),
    "a window that was wrong is drafted from": (
        (deliver, "follow_windows", "table.window_end[new.slots[rows]] = 0", "pass"),
        lambda: test_scheduler.test_no_draft_is_planned_once_the_output_left_the_window(),
    ),
    "what is in flight is shared": (
        (State, "register_prompts", " - table.num_in_flight_tokens[slot]", ""),
        lambda: test_prefix_caching.test_a_prompt_in_chunks_is_shared_chunk_by_chunk(2),
    ),
    "what a failed pass wrote is shared": (
        (settle, "_take_errors", "state.table.num_computed_tokens[step.slots[held]] = 0", "pass"),
        lambda: test_prefix_caching.test_an_error_of_an_aborted_request_is_not_shared(1, 64),
    ),
    "an end moves no version": (
        (State, "_stop", "self.table.version[slot] += 1", "pass"),
        lambda: test_prescheduling.test_an_end_drops_its_row_alone(2, 2),
    ),
    "a lease never ends": (
        (
            settle,
            "_take_back",
            "_reduce_lease(state, older, older.num_repeats + 1 - older.num_runs)",
            "pass",
        ),
        lambda: test_pipeline.test_a_newer_result_ends_the_lease(2, 1),
    ),
    "the drafter drafts where a window goes on": (
        (
            rows,
            "_share_budget",
            "np.where(has_window, drafts, from_drafter)",
            "from_drafter",
        ),
        lambda: test_drafter_rows.test_a_window_goes_before_the_drafter_and_both_draft(),
    ),
    "the drafter does not draft": (
        (
            rows,
            "_share_budget",
            "np.where(has_window, drafts, from_drafter)",
            "drafts",
        ),
        lambda: test_drafter_rows.test_a_row_without_a_window_drafts_with_the_drafter(
            test_drafter_rows.TREE, 6
        ),
    ),
    "drafts of the drafter reach beyond the length limit": (
        (
            rows,
            "_share_budget",
            "room = np.maximum(rows.max_length - 1 - assumed, 0)",
            "room = rows.drafter_width",
        ),
        lambda: test_drafter_rows.test_drafts_end_at_the_length_limit(),
    ),
    "a row of the drafter waits for its result": (
        (ahead, "_chances", "np.where(rows.drafter_width > 0, 1.0, chances)", "chances"),
        lambda: test_drafter_rows.test_a_row_of_the_drafter_does_not_wait_to_be_aligned(),
    ),
    "the drafter's rows teach about windows": (
        (
            deliver,
            "_learn_windows",
            "has_window = has_window & (new.draft_sources <= DraftSource.PREDICTION)",
            "pass",
        ),
        lambda: test_drafter_rows.test_a_window_that_came_meanwhile_learns_nothing_of_the_drafter(),
    ),
    "windows teach about the drafter": (
        (
            deliver,
            "learn_drafter",
            "rows = new.draft_sources == state.config.drafter.source",
            "rows = new.draft_sources >= 0",
        ),
        lambda: test_drafter_rows.test_the_drafter_learns_nothing_of_windows(),
    ),
    "the drafter's time is part of the pass": (
        (settle, "_learn_costs", "result.step_ns - result.draft_ns", "result.step_ns"),
        lambda: (
            test_drafter_rows.test_the_time_of_the_drafter_is_learnt_apart_from_that_of_the_pass()
        ),
    ),
    "any window wakes": (
        (
            State,
            "_wakes",
            "wakes(window, float(self.widths.scales[slot]) if has_slot else 1.0)",
            "True",
        ),
        lambda: test_following.test_what_rests_drafts_from_no_window(),
    ),
    "any source is taken": (
        (check, "check_result", "_check_sources(state.config.drafter, result)", "pass"),
        lambda: test_drafter_rows.test_without_a_drafter_nothing_else_may_draft(),
    ),
    "a tree that the output leaves for another branch is dead": (
        (requests.RequestTable, "move_tree", "left, length)", "None, length)"),
        lambda: test_trees.test_an_alternative_that_agrees_becomes_the_window(3, 1),
    ),
    "trees stay where they are": (
        (deliver, "follow_windows", "_move_trees(state, new, num_agreed < inside)", "None"),
        lambda: test_trees.test_an_alternative_that_agrees_becomes_the_window(3, 1),
    ),
    "the worker keeps a window when a newer one has died unsent": (
        (requests.RequestTable, "move_tree", "left or NO_WINDOW", "left"),
        lambda: test_trees.test_a_tree_that_died_unsent_is_not_drafted_from_its_predecessor(),
    ),
    "what is worth its cost is not asked": (
        (rows, "_share_budget", "view.widths.goes_by_value", "False"),
        lambda: test_values.test_drafts_end_where_they_are_not_worth_their_cost(),
    ),
}


@pytest.mark.parametrize("check", [commands, leases, prefixes, sources])
def test_with_all_rules_nothing_is_found(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("rule", COMMANDS)
def test_random_commands_need_the_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(monkeypatch, COMMANDS[rule], commands)


@pytest.mark.parametrize("rule", LEASES)
def test_repeats_need_the_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(monkeypatch, LEASES[rule], leases)


@pytest.mark.parametrize("rule", PREFIXES)
def test_shared_blocks_need_the_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(monkeypatch, PREFIXES[rule], prefixes)


@pytest.mark.parametrize("rule", SOURCES)
def test_accounts_by_source_need_the_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(monkeypatch, SOURCES[rule], sources)


@pytest.mark.usefixtures("always_ahead")
@pytest.mark.parametrize("rule", NAMED)
def test_a_named_test_needs_the_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, check = NAMED[rule]
    check()
    assert_noticed(monkeypatch, changed, check)


def assert_noticed(monkeypatch: pytest.MonkeyPatch, rule: Rule, check: Callable[[], None]) -> None:
    change(monkeypatch, *rule)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        check()
    # Not noticed, but broken.
    assert not isinstance(caught.value, NameError | TypeError | AttributeError | SyntaxError)
