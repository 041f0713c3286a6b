"""Rules of the core, each as an expression of its source and what stands there without it."""

from types import ModuleType

from optimist_scheduler.core.requests import state
from optimist_scheduler.core.requests.account import DraftAccounts
from optimist_scheduler.core.requests.table import RequestTable
from optimist_scheduler.core.results import deliver, new_tokens, reports, settle
from optimist_scheduler.core.schedule import admission, apply, repair, rows

State = state.SchedulerState

Rule = tuple[ModuleType | type, str, str, str]

COMMANDS: dict[str, Rule] = {
    # What is told.
    "prompts that are told of begin with cached blocks": (
        admission,
        "match_prefix",
        "if request.wants_prompt_logprobs:",
        "if False:",
    ),
    "what is cut off is told of": (
        reports,
        "report_logprobs",
        "logprobs.cut(num_skipped, number)",
        "logprobs.cut(num_skipped, 10**6)",
    ),
    # What is followed.
    "what rests drafts from its window": (
        State,
        "rest",
        "request.window = None",
        "pass",
    ),
    "what was not sent while a request rested is lost": (
        deliver,
        "_find_earlier",
        "np.flatnonzero(begins < ends).tolist()",
        "[]",
    ),
    "who leaves its slot forgets what it gained": (
        RequestTable,
        "release",
        "request.gain = int(self.gain[slot])",
        "pass",
    ),
    "who leaves its slot forgets what was sent": (
        RequestTable,
        "release",
        "request.num_observed_tokens = int(self.num_observed_tokens[slot])",
        "pass",
    ),
    # What is in flight.
    "placeholders fall by what was received": (
        settle,
        "_take_back",
        "rows.num_output_placeholders - num_assumed",
        "rows.num_output_placeholders - result.num_emitted_tokens",
    ),
    "placeholders fall by the accepted drafts alone": (
        settle,
        "_take_back",
        "rows.num_output_placeholders - num_assumed",
        "rows.num_output_placeholders - step.emits * (1 + result.num_accepted_tokens)",
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
        "num_wrong = num_assumed - result.num_emitted_tokens",
        "num_wrong = 0",
    ),
    "accepted drafts are taken back": (
        settle,
        "_take_back",
        "num_wrong = num_assumed - result.num_emitted_tokens",
        "num_wrong = num_assumed - step.emits",
    ),
    "drafts are not counted as computed": (
        apply,
        "_advance",
        "rows.num_computed_tokens + num_planned",
        "rows.num_computed_tokens + known",
    ),
    "tokens in flight are not reduced": (
        settle,
        "_take_back",
        "num_planned = step.num_known_tokens + step.num_draft_tokens",
        "num_planned = 0",
    ),
    "tokens in flight are reduced by the known ones": (
        settle,
        "_take_back",
        "num_planned = step.num_known_tokens + step.num_draft_tokens",
        "num_planned = step.num_known_tokens",
    ),
    "plans in flight are not reduced": (
        settle,
        "_take_back",
        "rows.num_plans_in_flight - 1",
        "rows.num_plans_in_flight - 0",
    ),
    "plans in flight are not counted": (
        apply,
        "_advance",
        "rows.num_plans_in_flight + 1",
        "rows.num_plans_in_flight + 0",
    ),
    "emitting plans in flight are not reduced": (
        settle,
        "_take_back",
        "rows.num_emits_in_flight - step.emits",
        "rows.num_emits_in_flight - 0 * step.emits",
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
        new_tokens,
        "find_stop",
        ">= request.min_length",
        ">= request.min_length - 1",
    ),
    "a stop token counts too late": (
        new_tokens,
        "find_stop",
        ">= request.min_length",
        "> request.min_length",
    ),
    "the length limit comes too late": (
        new_tokens,
        "find_new_tokens",
        "new.num_tokens >= rows",
        "new.num_tokens > rows",
    ),
    "what is behind a stop token is delivered": (
        new_tokens,
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
        "len(request.token_ids) - 1",
        "len(request.token_ids)",
    ),
    "the queue is not checked": (
        repair,
        "repair",
        "view.queue_version == decision.queue_version",
        "True",
    ),
}

SOURCES: dict[str, Rule] = {
    "all drafts are predictions in the account": (
        DraftAccounts,
        "_add",
        "slots * np.int64(NUM_SOURCES) + sources",
        "slots * np.int64(NUM_SOURCES) + 1",
    ),
    "all drafts of windows are predictions": (
        DraftAccounts,
        "_count",
        "np.where(positions >= 0, DraftSource.PREDICTION, DraftSource.NGRAM)",
        "np.full_like(positions, DraftSource.PREDICTION)",
    ),
    "accounts begin anew with each slot": (
        DraftAccounts,
        "open",
        "self._num_accepted[slot] = request.num_accepted_by_source",
        "self._num_accepted[slot] = 0",
    ),
    "accepted drafts are tokens of the target as well": (
        deliver,
        "make_end",
        "num_tokens - num_before - sum(by_source)",
        "num_tokens - num_before",
    ),
    "an end counts the prompt": (
        deliver,
        "make_end",
        "num_tokens - num_before - sum(by_source)",
        "num_tokens - sum(by_source)",
    ),
}
