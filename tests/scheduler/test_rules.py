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

from optimist_scheduler.core import admission, apply, deliver, repair, rows, settle, state
from tests.scheduler import (
    test_known_bugs_of_ends,
    test_pipeline,
    test_policies,
    test_prefix_caching,
    test_prescheduling,
    test_scheduler,
)
from tests.scheduler.test_random_commands import SchedulerMachine
from tests.scheduler.traffic import run_leases, run_prefixes

SETTINGS = settings(
    max_examples=150,
    stateful_step_count=60,
    phases=(Phase.generate,),
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

State = state.SchedulerState


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


Rule = tuple[ModuleType | type, str, str, str]

COMMANDS: dict[str, Rule] = {
    # What is in flight.
    "placeholders fall by what was received": (
        settle,
        "_take_back",
        "num_output_placeholders[slots] -= num_assumed",
        "num_output_placeholders[slots] -= result.num_emitted_tokens",
    ),
    "placeholders fall by the accepted drafts alone": (
        settle,
        "_take_back",
        "num_output_placeholders[slots] -= num_assumed",
        "num_output_placeholders[slots] -= step.emits * (1 + result.num_accepted_tokens)",
    ),
    "placeholders are the drafts alone": (
        apply,
        "_advance",
        "emits * (1 + drafts)",
        "emits * drafts",
    ),
    "placeholders are the next token alone": (
        apply,
        "_advance",
        "emits * (1 + drafts)",
        "emits",
    ),
    "prompts have placeholders too": (
        apply,
        "_advance",
        "emits * (1 + drafts)",
        "(1 + drafts)",
    ),
    "rejected drafts stay computed": (
        settle,
        "_take_back",
        "-= num_assumed - result.num_emitted_tokens",
        "-= 0",
    ),
    "accepted drafts are taken back": (
        settle,
        "_take_back",
        "-= num_assumed - result.num_emitted_tokens",
        "-= num_assumed - step.emits",
    ),
    "drafts are not counted as computed": (
        apply,
        "_advance",
        "num_computed_tokens[slots] += num_planned",
        "num_computed_tokens[slots] += known",
    ),
    "tokens in flight are not reduced": (
        settle,
        "_take_back",
        "-= step.num_known_tokens + step.num_draft_tokens",
        "-= 0",
    ),
    "tokens in flight are reduced by the known ones": (
        settle,
        "_take_back",
        "-= step.num_known_tokens + step.num_draft_tokens",
        "-= step.num_known_tokens",
    ),
    "plans in flight are not reduced": (
        settle,
        "_take_back",
        "num_plans_in_flight[slots] -= 1",
        "num_plans_in_flight[slots] -= 0",
    ),
    "plans in flight are not counted": (
        apply,
        "_advance",
        "num_plans_in_flight[slots] += 1",
        "num_plans_in_flight[slots] += 0",
    ),
    "emitting plans in flight are not reduced": (
        settle,
        "_take_back",
        "-= step.emits",
        "-= 0 * step.emits",
    ),
    # Who is over.
    "rows of ended requests count": (
        settle,
        "_find_alive",
        "table.status[slots] != SlotStatus.ENDED",
        "True",
    ),
    "slots are released with plans in flight": (
        State,
        "release_settled",
        "table.num_plans_in_flight[slots] == 0",
        "slots >= 0",
    ),
    "slots are not released": (
        settle,
        "settle",
        "state.release_settled(step.slots)",
        "None",
    ),
    "released slots are told again and again": (
        apply,
        "apply_schedule",
        "state.released_slots = state.released_slots, []",
        "_ = state.released_slots, []",
    ),
    "a preempted request is over": (
        State,
        "preempt",
        "SlotStatus.LEAVING",
        "SlotStatus.ENDED",
    ),
    "a stop token counts too early": (
        deliver,
        "find_stop",
        ">= request.min_length",
        ">= request.min_length - 1",
    ),
    "a stop token counts too late": (
        deliver,
        "find_stop",
        ">= request.min_length",
        "> request.min_length",
    ),
    "the length limit comes too late": (
        deliver,
        "find_new_tokens",
        "new.num_tokens >= state",
        "new.num_tokens > state",
    ),
    "what is behind a stop token is delivered": (
        deliver,
        "_cut_at_stops",
        "counts[row] = index + 1",
        "pass",
    ),
    # Blocks.
    "no block for drafts": (rows, "plan_rows", "worst = end + drafts", "worst = end"),
    "blocks as if there were one draft less": (
        rows,
        "plan_rows",
        "worst = end + drafts",
        "worst = end + np.maximum(drafts - 1, 0)",
    ),
    "blocks as before the plans in flight": (
        rows,
        "plan_rows",
        "end = rows.num_computed_tokens",
        "end = rows.num_computed_tokens - rows.num_output_placeholders",
    ),
    "an admission takes blocks that are not free": (
        admission,
        "admit",
        "num_free - num_taken - num_new - num_running",
        "1",
    ),
    # Decisions made ahead.
    "versions are not checked": (
        repair,
        "repair",
        "view.table.version[rows.slots] == decision.versions",
        "rows.slots >= 0",
    ),
    "rows of requests that are over are computed again": (
        repair,
        "repair",
        "view.table.status[stale] == SlotStatus.RUNNING",
        "stale >= 0",
    ),
}

LEASES: dict[str, Rule] = {
    "a repeat computes nothing": (
        settle,
        "settle",
        "+= result.num_emitted_tokens[alive]",
        "+= 0",
    ),
    "rows of an earlier use of the slot count": (
        settle,
        "_find_alive",
        "table.generation[slots] == step.generations",
        "slots >= 0",
    ),
    "no blocks for leases": (
        rows,
        "plan_rows",
        "+ rows.num_lease_tokens + known",
        "+ known",
    ),
    "leases are not counted": (
        apply,
        "_advance",
        "num_lease_tokens[slots] +=",
        "num_lease_tokens[slots] += 0 *",
    ),
    "no blocks for repeats": (
        rows,
        "plan_rows",
        "num_repeats * (1 + drafts) * (known > 0)",
        "0",
    ),
    "repeats beside prompts": (
        rows,
        "plan_rows",
        "(emits | (known == 0)).all()",
        "True",
    ),
}

PREFIXES: dict[str, Rule] = {
    "cached blocks are not counted as taken": (
        admission,
        "admit",
        "num_free -= num_taken + num_new",
        "num_free -= num_new",
    ),
    "the last token is taken from the cache": (
        admission,
        "match_prefix",
        "(len(request.token_ids) - 1)",
        "len(request.token_ids)",
    ),
    "the queue is not checked": (
        repair,
        "repair",
        "view.queue_version == decision.queue_version",
        "True",
    ),
}

NAMED: dict[str, tuple[Rule, Callable[[], None]]] = {
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
        lambda: test_policies.test_a_prompt_that_is_cut_off_takes_no_drafts_from_others(),
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
        (State, "register_prompts", " - table.num_in_flight_tokens[slots]", ""),
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
        (settle, "_take_back", "_end_lease(state, older)", "pass"),
        lambda: test_pipeline.test_a_newer_result_ends_the_lease(2, 1),
    ),
}


@pytest.mark.parametrize("check", [commands, leases, prefixes])
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
