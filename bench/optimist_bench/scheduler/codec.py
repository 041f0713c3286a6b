"""What plans and results cost between columns and bytes, on both sides of the wire."""

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter_ns

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import from_bytes
from optimist_scheduler.core.requests.plan import Plan
from optimist_scheduler.workers.translate import plan_message, step_result
from optimist_worker.core.plan import StepResult
from optimist_worker.execution.codec import Limits, decode_plan, encode_result


@dataclass(frozen=True, slots=True)
class Exchange:
    """A plan and what the worker answered."""

    plan: Plan
    response: worker_pb2.ExecuteResponse


def time_exchanges(exchanges: Iterable[Exchange], limits: Limits, num_rounds: int) -> list[int]:
    """Takes each plan to bytes and back, and its result, as often as there are rounds.

    Returns:
        Nanoseconds of each exchange in each round.
    """
    prepared = [(each.plan, _worker_result(each.response)) for each in exchanges]
    return [
        _time_exchange(plan, result, limits) for _ in range(num_rounds) for plan, result in prepared
    ]


def _time_exchange(plan: Plan, result: StepResult, limits: Limits) -> int:
    started = perf_counter_ns()
    data = plan_message(plan).SerializeToString()
    decode_plan(worker_pb2.ExecuteRequest.FromString(data), limits)
    data = encode_result(result, step_ns=1, idle_ns=1).SerializeToString()
    step_result(worker_pb2.ExecuteResponse.FromString(data))
    return perf_counter_ns() - started


def _worker_result(response: worker_pb2.ExecuteResponse) -> StepResult:
    return StepResult(
        sequence=response.sequence,
        repeat=response.repeat,
        slots=from_bytes(response.slots),
        lengths=from_bytes(response.lengths),
        num_emitted_tokens=from_bytes(response.num_emitted_tokens),
        token_ids=from_bytes(response.token_ids),
        num_drafted_tokens=from_bytes(response.num_drafted_tokens),
        num_accepted_tokens=from_bytes(response.num_accepted_tokens),
        draft_sources=from_bytes(response.draft_sources),
        window_nodes=from_bytes(response.window_nodes),
        accepted_nodes=from_bytes(response.accepted_nodes),
        errors={},
        num_tokens=response.num_tokens,
        num_live_rows=0,
    )
