"""The ends of requests, with their accounts."""

from optimist_common.drafts import PREDICTION, TARGET
from optimist_scheduler.core.base.values import Ended, Finished, FinishReason
from optimist_scheduler.core.requests.account import num_rejected_tokens
from optimist_scheduler.core.requests.request import NO_SLOT, Request
from optimist_scheduler.core.requests.state import SchedulerState


def finish(
    state: SchedulerState, request: Request, reason: FinishReason, message: str = ""
) -> Ended:
    """Ends a request and returns its account."""
    end = find_end(state, request, reason, message)
    state.end(request)
    return end


def find_end(state: SchedulerState, request: Request, reason: FinishReason, message: str) -> Ended:
    """Returns the account of a request whose state is of no use any more, or ends with it."""
    num_tokens = len(request.token_ids)
    if request.slot != NO_SLOT:
        state.accounts.close(request.slot, request)
        state.table.update(request)
        num_tokens = int(state.table.num_tokens[request.slot])
    return make_end(request, num_tokens, reason, message)


def make_end(request: Request, num_tokens: int, reason: FinishReason, message: str) -> Ended:
    """Returns the account of a request that is over, `num_tokens` long."""
    by_source = list(request.num_accepted_by_source)
    num_before = request.num_prompt_tokens + request.num_given_tokens
    by_source[TARGET] = num_tokens - num_before - sum(by_source)
    finished = Finished(
        reason,
        message,
        by_source[PREDICTION],
        num_rejected_tokens(request),
        request.num_passes,
        tuple(by_source),
        request.num_drafted_tokens,
        request.num_cached_tokens or 0,
    )
    return Ended(request.owner, request.handle, request.request_id, finished)
