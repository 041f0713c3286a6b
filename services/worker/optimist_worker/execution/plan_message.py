"""Plans as messages again, for the ranks that no scheduler speaks with."""

from optimist.worker.v1 import worker_pb2
from optimist_common.columns import to_bytes
from optimist_common.sampling_message import write_sampling
from optimist_worker.core.plan import Admission, Plan, WindowUpdate


def write_plan(plan: Plan) -> worker_pb2.ExecuteRequest:
    """Writes the message that `codec.decode_plan` reads as this plan, which is no repeat."""
    return worker_pb2.ExecuteRequest(
        sequence=plan.sequence,
        released_slots=to_bytes(list(plan.released_slots)),
        admissions=[_admission(admission) for admission in plan.admissions],
        windows=[_window(window) for window in plan.windows],
        slots=to_bytes(plan.slots),
        num_known_tokens=to_bytes(plan.num_known_tokens),
        num_draft_tokens=to_bytes(plan.num_draft_tokens),
        num_new_blocks=to_bytes(plan.num_new_blocks),
        new_blocks=to_bytes(plan.new_blocks),
        num_repeats=plan.num_repeats,
    )


def _admission(admission: Admission) -> worker_pb2.Admission:
    return worker_pb2.Admission(
        slot=admission.slot,
        request_id=admission.request_id,
        token_ids=to_bytes(admission.token_ids),
        num_prompt_tokens=admission.num_prompt_tokens,
        sampling=write_sampling(admission.sampling),
        cached_blocks=to_bytes(admission.cached_blocks),
        max_length=admission.max_length,
        min_length=admission.min_length,
        stop_token_ids=to_bytes(admission.stop_token_ids),
    )


def _window(window: WindowUpdate) -> worker_pb2.Window:
    return worker_pb2.Window(
        slot=window.slot,
        base=window.base,
        token_ids=to_bytes(window.token_ids),
        parents=to_bytes(window.parents),
    )
