"""Takes a result in: what was assumed too much is taken back, tokens and ends come out."""

from collections.abc import Sequence

import numpy as np

from optimist_common.drafts import FORM, NGRAM, PREDICTION
from optimist_scheduler.core.base.values import (
    BoolArray,
    ReportedLogprobs,
    ReportedPositions,
    SlotArray,
    StepOutputs,
)
from optimist_scheduler.core.requests.following import LEAST_GAIN, NOT_FOLLOWED, average
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.state import WIDTH_INTERVAL, SchedulerState
from optimist_scheduler.core.requests.table import Counters, SlotStatus
from optimist_scheduler.core.results.check import ResultError, check_result
from optimist_scheduler.core.results.deliver import build_outputs, report_logprobs, report_positions
from optimist_scheduler.core.results.tokens import NewTokens, find_new_tokens, follow_windows, keep
from optimist_scheduler.core.windows.window import NO_WINDOW

UNUSED_WIDTH_INTERVAL = 8 * WIDTH_INTERVAL
"""The same while none of the rows drafts: new ones begin with what was chosen last."""


def settle(state: SchedulerState, result: StepResult) -> StepOutputs:
    """Settles the oldest plan in flight.

    With `e` emitted tokens of `k` planned drafts, `k - (e - 1)` computed tokens and all `1 + k`
    placeholders are taken back. Tokens after a stop token or the length limit are cut off. A row
    that is wrong or has failed ends its request, and no other.

    Raises:
        ResultError: The result cannot be read as the next one; nothing was changed.
    """
    step = next(iter(state.in_flight), None)
    # A stream brings all results, each once and in order.
    if step is None or result.sequence != step.sequence:
        raise ResultError(f"sequence: {result.sequence} is not the next one")
    # Also if the result is refused: once more, the same windows change nothing.
    _set_worker_windows(state, step)
    alive = _find_alive(state, step)
    rows = state.table.gather_counters(step.slots)
    result, nodes = check_result(state, step, rows, alive, result)
    state.stats.num_results += 1
    _take_back(state, step, rows, result)
    new = find_new_tokens(state, step, rows, alive, result, nodes)
    keep(state, new)
    errors = _take_errors(state, step, alive, result)
    logprobs: Sequence[ReportedLogprobs] = ()
    positions: Sequence[ReportedPositions] = ()
    if state.logprob_slots:
        logprobs, wrong = report_logprobs(state, step, new, alive, result)
        errors |= wrong
    if state.position_slots:
        positions = report_positions(state, new)
    follow_windows(state, new)
    _learn_drafter(state, new)
    _learn_gains(state, step, new)
    outputs = build_outputs(state, new, errors, logprobs, positions)
    _learn_costs(state, step, result)
    state.register_prompts()
    state.release_settled()
    state.weigh_drafter()
    return outputs


def _set_worker_windows(state: SchedulerState, step: Plan) -> None:
    """Takes note of the windows that the worker has taken with a plan."""
    # Who takes a slot has nothing to draft from but what comes with it.
    windows = {admission.slot: NO_WINDOW for admission in step.admissions} | dict(step.windows)
    for slot, window in windows.items():
        state.worker_windows.set(slot, window.positions, window.tree.parents)


def _find_alive(state: SchedulerState, step: Plan) -> BoolArray:
    """Returns which rows belong to requests that are not over."""
    # Whatever a plan in flight names is running or fenced.
    if not state.fenced:
        return state.everyone[: len(step.slots)]
    alive: BoolArray = state.table.status.take(step.slots) != SlotStatus.ENDED
    return alive


def _take_back(state: SchedulerState, step: Plan, rows: Counters, result: StepResult) -> None:
    """Moves the counters from what was assumed to what is."""
    table, slots = state.table, step.slots
    state.in_flight.popleft()
    num_assumed = step.emits * (1 + step.num_draft_tokens)
    num_wrong = num_assumed - result.num_emitted_tokens
    num_planned = step.num_known_tokens + step.num_draft_tokens
    table.num_computed_tokens[slots] = rows.num_computed_tokens - num_wrong
    table.num_output_placeholders[slots] = rows.num_output_placeholders - num_assumed
    table.num_in_flight_tokens[slots] = rows.num_in_flight_tokens - num_planned
    table.num_plans_in_flight[slots] = rows.num_plans_in_flight - 1
    table.num_emits_in_flight[slots] = rows.num_emits_in_flight - step.emits


def _take_errors(
    state: SchedulerState, step: Plan, alive: BoolArray, result: StepResult
) -> dict[int, str]:
    """Returns what went wrong with requests that are not over, by slot."""
    if not result.errors:
        return {}
    # What a failed pass wrote may be anything: it must not enter the prefix cache.
    failed = np.isin(step.slots, list(result.errors))
    held = failed & (state.table.generation[step.slots] == step.generations)
    state.table.num_computed_tokens[step.slots[held]] = 0
    return {slot: result.errors[slot] for slot in step.slots[failed & alive].tolist()}


def _learn_drafter(state: SchedulerState, new: NewTokens) -> None:
    """Learns how well the worker's drafter does."""
    if (drafter := state.widths.drafter) is None:
        return
    rows = new.draft_sources == int(drafter.shape.source)
    if np.count_nonzero(rows):
        drafted, accepted = (
            new.num_base_drafted_tokens[rows],
            new.num_base_accepted_tokens[rows],
        )
        drafter.observe(new.slots[rows], drafted, accepted)


def _learn_gains(state: SchedulerState, step: Plan, new: NewTokens) -> None:
    """Learns what following requests brings; those that gain too little rest."""
    table = state.table
    if not table.num_followed:
        return
    before = table.gain.take(new.slots)
    # A pass without a window gains nothing too: a window that is right again wakes.
    accepted = new.num_base_accepted_tokens * (new.draft_sources == PREDICTION)
    # What a window would have brought where a model drafted before it could come is not known.
    sources = new.draft_sources
    is_models = (sources > PREDICTION) & (sources != NGRAM) & (sources != FORM)
    is_untried = is_models & step.is_ahead
    is_predicted = (table.num_predicted_tokens.take(new.slots) > 0) & (before > NOT_FOLLOWED)
    table.predicted_gain.observe(accepted[is_predicted & ~is_untried])
    if not np.count_nonzero(before >= LEAST_GAIN):
        return
    after = average(before, accepted, is_untried)
    table.gain[new.slots] = after
    for slot in new.slots[(before >= LEAST_GAIN) & (after < LEAST_GAIN)].tolist():
        state.rest(slot)


def _learn_costs(state: SchedulerState, step: Plan, result: StepResult) -> None:
    """Learns what steps cost, and now and then chooses anew how much the step's rows draft."""
    pass_ns = result.step_ns - result.draft_ns
    costs = state.costs_for(step.slots)
    # As it is expected: stalls say nothing of what drafts bring.
    num_prompt_tokens = int(np.add.reduce(step.num_known_tokens - step.emits))
    expected_ns = costs.cost_of(result.num_tokens - num_prompt_tokens)
    num_tokens = step.num_known_tokens + result.num_drafted_tokens
    state.costs.learn(
        state.table.num_computed_tokens.take(step.slots), num_tokens, result.num_tokens, pass_ns
    )
    if result.num_tokens and result.step_ns:
        _learn_pace(state, step, result)
    if state.config.drafter is not None:
        is_drafters = result.draft_sources == int(state.config.drafter.source)
        drafted = result.num_base_drafted_tokens[is_drafters]
        if len(drafted):
            deepest = int(state.config.drafter.count_levels(drafted).max())
            expected_ns += state.costs.drafter.cost_of(deepest)
            state.costs.drafter.observe(deepest, result.draft_ns)
    if num_rows := int(np.count_nonzero(result.num_emitted_tokens)):
        num_plain = num_rows * expected_ns / costs.cost_of(num_rows)
        state.widths.observe_pass(len(result.token_ids), num_plain)
    if not state.is_turn(WIDTH_INTERVAL):
        return
    table, slots = state.table, step.slots[step.emits > 0]
    slots = slots[table.status[slots] == SlotStatus.RUNNING]
    if len(slots) and (_may_draft(state, slots) or state.is_turn(UNUSED_WIDTH_INTERVAL)):
        state.choose_widths(slots, int(step.num_known_tokens.sum()))


def _learn_pace(state: SchedulerState, step: Plan, result: StepResult) -> None:
    """Learns now and then how fast requests go, and from the first result."""
    if state.pace.is_known and not state.is_turn(WIDTH_INTERVAL):
        return
    emits = result.num_emitted_tokens > 0
    # Without anybody who waits, a worker may be idle because there is nothing to do.
    idle_ns = result.idle_ns if state.waiting.requests else 0
    state.pace.observe(
        int(np.count_nonzero(emits)),
        len(result.token_ids),
        int(result.num_drafted_tokens[emits].sum()),
        result.step_ns + idle_ns,
        state.costs_for(step.slots).cost_of(result.num_tokens),
    )


def _may_draft(state: SchedulerState, slots: SlotArray) -> bool:
    """Returns whether any of the slots has something to draft from, or may come to have it."""
    table, drafter = state.table, state.widths.drafter
    return bool(
        (drafter is not None and drafter.may_serve(slots))
        or np.count_nonzero(table.window_end.take(slots))
        or np.count_nonzero(table.form_width.take(slots))
        or np.count_nonzero(table.gain.take(slots) >= LEAST_GAIN)
    )
