"""Messages to schedulers and from them: requests become commands, and steps plain values."""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from google.protobuf.message import Message

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_from_bytes, from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.sampling_message import write_sampling
from optimist_gateway.core.answer.output import (
    Finished,
    FinishReason,
    StepLogprobs,
    StepOutput,
    TokenLogprobs,
)
from optimist_gateway.core.answer.spans import Prompt, SentPrediction
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import Request, cache_salt, choice_seed
from optimist_gateway.core.schedulers import PRIORITY, ModelDescription
from optimist_gateway.security.keys import current_client

# The contract reads 0 as 1; this keeps the most likely token alone, as 0 does in OpenAI's API.
_SMALLEST_TOP_P = 1e-6


def prepare(
    request: Request,
    prompts: Sequence[Prompt],
    predictions: Sequence[SentPrediction],
    model: ModelDescription,
    request_id: str,
) -> list[scheduler_pb2.Add]:
    """Returns a command for each choice, those of the first prompt first.

    The choices of a prompt differ in name and seed. Raises FieldError if a parameter does not fit
    the model or another parameter.
    """
    max_tokens = [_max_tokens(request, len(prompt.token_ids), model) for prompt in prompts]
    common = _common(request, prompts, predictions, model)
    most = min(max_tokens)
    structure = request.structure
    # What the model thinks before has any length.
    if structure is not None and structure.max_tokens is not None and not prompts[0].thinking:
        most = min(most, structure.max_tokens)
    if common.min_tokens > most:
        raise FieldError(
            ("min_tokens",),
            f"{common.min_tokens} is more than the {most} tokens that may be generated",
        )
    adds: list[scheduler_pb2.Add] = []
    for prompt, most in zip(prompts, max_tokens, strict=True):
        for number in range(request.n):
            add = scheduler_pb2.Add()
            add.CopyFrom(common)
            add.request_id = f"{request_id}-{len(adds)}" if request.num_choices > 1 else request_id
            add.prompt_token_ids = to_bytes(prompt.token_ids)
            # An answer that is the prompt alone has a token too; it is not reported.
            add.max_tokens = max(most, 1)
            add.sampling.seed = choice_seed(common.sampling.seed, number)
            adds.append(add)
    return adds


def _common(
    request: Request,
    prompts: Sequence[Prompt],
    predictions: Sequence[SentPrediction],
    model: ModelDescription,
) -> scheduler_pb2.Add:
    """Returns what the commands of all choices have in common."""
    drafts, most = request.num_speculative_tokens, model.max_draft_tokens
    if drafts is not None and most is not None:
        drafts = min(drafts, most)
    model.require_known(request.stop_token_ids, ("stop_token_ids",))
    stop_token_ids = [*request.stop_token_ids]
    if not request.ignore_eos or request.structure is not None:
        # After the end of a grammar nothing else can come.
        stop_token_ids += model.eos_token_ids
        stop_token_ids += chain.from_iterable(prompt.end_ids for prompt in prompts)
    token_ids = [prediction.token_ids for prediction in predictions]
    lengths = [len(one) for one in token_ids]
    model.require_known(list(request.sampling.logit_bias), ("sampling", "logit_bias"))
    add = scheduler_pb2.Add(
        predicted_token_ids=to_bytes(list(chain.from_iterable(token_ids))),
        num_predicted_tokens=to_bytes(lengths if len(lengths) > 1 else []),
        sampling=_sampling(request),
        stop_token_ids=to_bytes(list(dict.fromkeys(stop_token_ids))),
        min_tokens=request.min_tokens,
        priority=request.priority,
        cache_salt=cache_salt(current_client.get().name, request.cache_salt),
        max_draft_tokens=drafts,
        # An answer that a stop string ends has no account but that of its steps.
        wants_prediction_positions=bool(
            request.include_provenance or (predictions and request.stop)
        ),
    )
    model.require_supported(find_used(add, model.unsupported_fields))
    return add


_NEUTRAL = {"sampling.repetition_penalty": 1.0, "sampling.top_p": 1.0}
"""Values that ask for nothing, where that is not the default of the message."""


def find_used(add: scheduler_pb2.Add, names: Iterable[str]) -> list[str]:
    """Returns those fields, such as `sampling.min_p`, that a command has; others are unknown."""
    return [name for name in sorted(names) if _is_used(add, name)]


def _is_used(add: scheduler_pb2.Add, name: str) -> bool:
    message: Message = add
    *outer, last = name.split(".")
    for each in outer:
        if each not in message.DESCRIPTOR.fields_by_name:
            return False
        message = getattr(message, each)
    field = message.DESCRIPTOR.fields_by_name.get(last)
    if field is None:
        return False
    if field.has_presence:
        return message.HasField(last)
    return getattr(message, last) not in (_NEUTRAL.get(name), field.default_value)


def _max_tokens(request: Request, num_prompt_tokens: int, model: ModelDescription) -> int:
    left = model.max_model_len - num_prompt_tokens
    if left < 1:
        size = f"{num_prompt_tokens} tokens in the prompt, which leaves none for the answer"
        raise model.too_long(("prompts",), size)
    asked = request.default_max_tokens if request.max_tokens is None else request.max_tokens
    return left if asked is None else min(asked, left)


def _sampling(request: Request) -> sampling_pb2.SamplingParams:
    sampling = replace(
        request.sampling,
        top_p=max(request.sampling.top_p, _SMALLEST_TOP_P),
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        num_logprobs=request.num_logprobs,
        num_prompt_logprobs=request.num_logprobs if request.echo else None,
    )
    message = write_sampling(sampling)
    message.has_client_seed = request.seed is not None
    return message


def read_description(response: scheduler_pb2.DescribeResponse) -> ModelDescription:
    """Reads one scheduler's description; raises ValueError if it is none."""
    lengths = [response.max_model_len, response.kv_capacity_tokens]
    unsupported = frozenset(response.unsupported_fields)
    # A scheduler whose version has no policies is taken to honour priorities.
    if response.policy == scheduler_pb2.SCHEDULING_POLICY_FCFS:
        unsupported |= {PRIORITY}
    return ModelDescription(
        vocab_size=response.vocab_size,
        max_model_len=min(length for length in lengths if length > 0),
        eos_token_ids=tuple(from_bytes(response.eos_token_ids).tolist()),
        max_draft_tokens=(
            response.max_draft_tokens if response.HasField("max_draft_tokens") else None
        ),
        engine=response.engine,
        unsupported_fields=unsupported,
        unsupported_after_output=frozenset(response.unsupported_after_output),
    )


_REASONS = {
    scheduler_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    scheduler_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    scheduler_pb2.FINISH_REASON_REFUSED: FinishReason.REFUSED,
    scheduler_pb2.FINISH_REASON_OVERLOADED: FinishReason.OVERLOADED,
    scheduler_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
    scheduler_pb2.FINISH_REASON_ABORTED: FinishReason.ABORTED,
}


class _Sources(dict[int, DraftSource]):
    """Where drafts came from, by number; what only a later scheduler knows is the target's."""

    def __missing__(self, number: int) -> DraftSource:
        return DraftSource.TARGET


# Quicker than to call the enumeration, with each request and step.
_SOURCES = _Sources({source.value: source for source in DraftSource})
_NOWHERE: tuple[None, None] = None, None
"""Positions of a request that wants none."""


def read_outputs(
    response: scheduler_pb2.ConnectResponse, now: float = 0.0
) -> Iterator[tuple[int, StepOutput]]:
    """Yields the outputs of a step, which came `now` by `time.perf_counter`, with their handles.

    They are made one by one: each takes the memory that the one before it has left. Raises
    ValueError if the parts of the message do not fit together.
    """
    finished = {one.handle: _finished(one) for one in response.finished}
    logprobs = {one.handle: one for one in response.logprobs}
    positions = {one.handle: one for one in response.prediction_positions}
    num_tokens = from_bytes(response.num_tokens).tolist()
    token_ids = from_bytes(response.token_ids).tolist()
    if sum(num_tokens) != len(token_ids):
        raise ValueError(f"{len(token_ids)} tokens instead of {sum(num_tokens)}")
    handles = from_bytes(response.handles).tolist()
    start = 0
    for handle, count, accepted, source, of_form in zip(
        handles,
        num_tokens,
        from_bytes(response.num_accepted_tokens).tolist(),
        map(_SOURCES.__getitem__, from_bytes(response.draft_sources).tolist()),
        from_bytes(response.num_form_tokens).tolist() or [0] * len(handles),
        strict=True,
    ):
        tokens = token_ids[start : start + count]
        predicted, prompted = _positions(positions, handle, accepted) if positions else _NOWHERE
        yield (
            handle,
            StepOutput(
                tokens,
                accepted,
                source,
                finished.get(handle) if finished else None,
                _logprobs(logprobs, handle, count) if logprobs else None,
                predicted,
                prompted,
                now,
                of_form,
            ),
        )
        start += count
    for handle in (finished.keys() | logprobs.keys()).difference(handles):
        known = _logprobs(logprobs, handle, 0)
        yield handle, StepOutput([], finished=finished.get(handle), logprobs=known, received=now)


def _finished(message: scheduler_pb2.Finished) -> Finished:
    num_tokens_by_source: Counter[DraftSource] = Counter()
    for source, count in enumerate(from_bytes(message.num_tokens_by_source).tolist()):
        if count:
            num_tokens_by_source[_SOURCES[source]] += count
    reason = _REASONS.get(message.reason)
    text = message.message
    if reason is None:
        reason = FinishReason.ERROR
        text = f"it ended for a reason that this gateway does not know ({message.reason}) {text}"
    return Finished(
        reason=reason,
        message=text.strip(),
        accepted_prediction_tokens=message.accepted_prediction_tokens,
        rejected_prediction_tokens=message.rejected_prediction_tokens,
        num_passes=message.num_passes,
        num_tokens_by_source=num_tokens_by_source,
        num_drafted_tokens=message.num_drafted_tokens,
        queue_seconds=message.queue_us / 1e6,
        num_cached_tokens=message.num_cached_tokens,
        retry_seconds=message.retry_ms / 1000 if message.retry_ms > 0 else None,
    )


def _positions(
    messages: Mapping[int, scheduler_pb2.PredictionPositions], handle: int, num_accepted: int
) -> tuple[list[int] | None, list[int] | None]:
    """Returns the positions in the predictions and in the prompt."""
    if (message := messages.get(handle)) is None:
        return _NOWHERE
    predicted = _column(message.positions, num_accepted, -1, "predictions")
    if not message.prompt_positions:
        return predicted, None
    return predicted, _column(message.prompt_positions, num_accepted, 0, "prompt")


def _column(data: bytes, num_accepted: int, least: int, text: str) -> list[int]:
    positions: list[int] = from_bytes(data).tolist()
    if len(positions) != num_accepted:
        raise ValueError(
            f"{len(positions)} positions in the {text} for {num_accepted} accepted drafts"
        )
    if any(position < least for position in positions):
        raise ValueError(f"a position in the {text} is {min(positions)}")
    return positions


def _logprobs(
    messages: Mapping[int, scheduler_pb2.Logprobs], handle: int, num_tokens: int
) -> StepLogprobs | None:
    if (message := messages.get(handle)) is None:
        return None
    num_prompt, width = message.num_prompt_tokens, message.num_prompt_candidates
    logprobs: list[float] = floats_from_bytes(message.logprobs).tolist()
    # Requests may want those of the prompt only.
    is_negative = min(num_prompt, width, message.num_candidates) < 0
    if is_negative or len(logprobs) - num_prompt not in (0, num_tokens):
        raise ValueError(
            f"{len(logprobs)} log-probabilities of {num_prompt} tokens of a prompt and "
            f"{num_tokens} new ones"
        )
    ids = from_bytes(message.candidate_token_ids)
    of_ids = floats_from_bytes(message.candidate_logprobs)
    new, cut = logprobs[num_prompt:], num_prompt * width
    return StepLogprobs(
        first_prompt_position=message.first_prompt_position,
        prompt=_token_logprobs(logprobs[:num_prompt], ids[:cut], of_ids[:cut], width),
        tokens=_token_logprobs(new, ids[cut:], of_ids[cut:], message.num_candidates),
    )


def _token_logprobs(
    logprobs: list[float], token_ids: Any, of_candidates: Any, width: int
) -> list[TokenLogprobs]:
    """Returns what is known of tokens, each with as many candidates; raises ValueError if not."""
    shape = len(logprobs), width
    rows = token_ids.reshape(shape).tolist(), of_candidates.reshape(shape).tolist()
    return [TokenLogprobs(*one) for one in zip(logprobs, *rows, strict=True)]
