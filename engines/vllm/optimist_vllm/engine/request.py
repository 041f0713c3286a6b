"""A request as it came and what is known of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import read_sampling
from optimist_common.scheduler_service.fields import MalformedError, read_integers, read_names
from optimist_common.scheduler_service.stream import GatewayStream
from optimist_vllm.core.payload import Payload
from optimist_vllm.core.prediction import MAX_PREDICTIONS, check_num_tokens

_MAX_REQUEST_ID_LENGTH = 256
_MAX_CACHE_SALT_BYTES = 256
_MAX_TRACE_PARENT_LENGTH = 64
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What is asked for."""

    request_id: str
    token_ids: Sequence[int]
    """The prompt, and what an earlier run delivered."""
    sampling: SamplingParams
    seed: int | None
    """That of the client; None if it has chosen none."""
    max_tokens: int
    """From here on."""
    min_tokens: int
    """From here on."""
    stop_token_ids: Sequence[int]
    payload: Payload
    priority: int
    cache_salt: str
    trace_parent: str


@dataclass(slots=True, eq=False)
class Running:
    """A request that has not ended, and its account so far."""

    stream: GatewayStream
    handle: int
    wants_positions: bool
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    num_passes: int = 0
    num_drafted: int = 0
    by_source: Counter[DraftSource] = field(default_factory=Counter)
    queued: float = 0.0
    """When vLLM queued it, in seconds by its clock."""
    queue_us: int = 0
    num_cached_tokens: int = 0

    def end(
        self, reason: "scheduler_pb2.FinishReason.ValueType", message: str = ""
    ) -> scheduler_pb2.Finished:
        """Returns its end and account."""
        sources = range(max(self.by_source, default=-1) + 1)
        return scheduler_pb2.Finished(
            handle=self.handle,
            reason=reason,
            message=message,
            accepted_prediction_tokens=self.accepted_prediction_tokens,
            rejected_prediction_tokens=self.rejected_prediction_tokens,
            num_passes=self.num_passes,
            num_tokens_by_source=to_bytes([self.by_source[DraftSource(each)] for each in sources]),
            num_drafted_tokens=self.num_drafted,
            queue_us=self.queue_us,
            num_cached_tokens=self.num_cached_tokens,
        )


def read_request(add: scheduler_pb2.Add, *, vocab_size: int, has_priorities: bool) -> NewRequest:
    """Reads a command.

    Args:
        add: The command.
        vocab_size: Of the model.
        has_priorities: Whether vLLM's scheduling policy is `priority`.

    Raises:
        MalformedError: It breaks the contract; the text names the field.
    """
    read_names(add)
    prompt = read_integers("prompt_token_ids", add.prompt_token_ids)
    delivered = read_integers("output_token_ids", add.output_token_ids)
    stop_token_ids = read_integers("stop_token_ids", add.stop_token_ids)
    for name, token_ids in (
        ("prompt_token_ids", prompt),
        ("output_token_ids", delivered),
        ("stop_token_ids", stop_token_ids),
    ):
        _require_tokens(name, token_ids, vocab_size)
    _require_numbers(add, num_prompt=len(prompt), num_delivered=len(delivered))
    if add.priority and not has_priorities:
        raise MalformedError("priority: has no effect with the policy fcfs")
    try:
        sampling = read_sampling(add.sampling)
    except ValueError as error:
        raise MalformedError(str(error)) from None
    if (fault := sampling.fault(vocab_size)) is not None:
        raise MalformedError(f"sampling.{fault}")
    num_delivered = len(delivered)
    return NewRequest(
        request_id=add.request_id,
        token_ids=[*prompt, *delivered],
        sampling=sampling,
        seed=sampling.seed if add.sampling.has_client_seed else None,
        max_tokens=add.max_tokens - num_delivered,
        min_tokens=max(add.min_tokens - num_delivered, 0),
        stop_token_ids=list(dict.fromkeys(stop_token_ids)),
        payload=Payload(
            key=None,
            predictions=_read_predictions(add),
            max_drafts=add.max_draft_tokens if add.HasField("max_draft_tokens") else None,
            num_delivered=num_delivered,
        ),
        priority=add.priority,
        cache_salt=add.cache_salt,
        trace_parent=add.trace_parent,
    )


def _require_tokens(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if len(token_ids) and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise MalformedError(f"{name}: must be tokens of this model (0 to {vocab_size - 1})")


def _require_numbers(add: scheduler_pb2.Add, *, num_prompt: int, num_delivered: int) -> None:
    if not 0 < len(add.request_id) <= _MAX_REQUEST_ID_LENGTH:
        raise MalformedError(f"request_id: must have 1 to {_MAX_REQUEST_ID_LENGTH} characters")
    if not num_prompt:
        raise MalformedError("prompt_token_ids: must have at least one token")
    if not num_delivered < add.max_tokens:
        raise MalformedError(
            f"max_tokens: must be at least {num_delivered + 1}, not {add.max_tokens}"
        )
    if not 0 <= add.min_tokens <= _MAX_INT32:
        raise MalformedError(f"min_tokens: must be at least 0, not {add.min_tokens}")
    if add.max_draft_tokens < 0:
        raise MalformedError(f"max_draft_tokens: must be at least 0, not {add.max_draft_tokens}")
    if len(add.cache_salt.encode()) > _MAX_CACHE_SALT_BYTES:
        raise MalformedError(f"cache_salt: must be at most {_MAX_CACHE_SALT_BYTES} bytes")
    if len(add.trace_parent) > _MAX_TRACE_PARENT_LENGTH:
        raise MalformedError(f"trace_parent: must be at most {_MAX_TRACE_PARENT_LENGTH} characters")


def _read_predictions(add: scheduler_pb2.Add) -> list[bytes]:
    """Returns the token ids of each prediction, int32."""
    token_ids = read_integers("predicted_token_ids", add.predicted_token_ids)
    lengths = read_integers("num_predicted_tokens", add.num_predicted_tokens)
    lengths = list(lengths) or ([len(token_ids)] if len(token_ids) else [])
    if len(lengths) > MAX_PREDICTIONS:
        raise MalformedError(f"num_predicted_tokens: must be at most {MAX_PREDICTIONS} numbers")
    if any(length < 0 for length in lengths) or sum(lengths) != len(token_ids):
        raise MalformedError(
            f"num_predicted_tokens: must add up to the {len(token_ids)} predicted tokens"
        )
    try:
        check_num_tokens([token_ids])
    except ValueError as error:
        raise MalformedError(f"predicted_token_ids: {error}") from None
    predictions, start = [], 0
    for length in lengths:
        predictions.append(add.predicted_token_ids[4 * start : 4 * (start + length)])
        start += length
    return predictions
