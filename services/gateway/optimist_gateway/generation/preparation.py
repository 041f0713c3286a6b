"""From the body of a request to the commands for the scheduler."""

import secrets
from collections.abc import Sequence
from itertools import chain

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_gateway.core.answer.places import SentPrediction
from optimist_gateway.core.cache_salt import cache_salt
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.prompt import Prompt
from optimist_gateway.core.seed import choice_seed
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.errors import ApiError
from optimist_gateway.security.client import current_client
from optimist_gateway.text.known_token import require_known

# The contract reads 0 as 1; this keeps the most likely token alone, as 0 does in OpenAI's API.
_SMALLEST_TOP_P = 1e-6


def require_priority_policy(model: ModelDescription) -> None:
    """Raises ApiError, which names `priority`, if no scheduler honours priorities."""
    if model.is_fcfs:
        raise ApiError(
            400,
            "priority: is not supported by the scheduler's policy fcfs; --policy priority honours "
            "it",
            param="priority",
            code="unsupported_value",
        )


def prepare(
    body: GenerationBody,
    prompts: Sequence[Prompt],
    predictions: Sequence[SentPrediction],
    model: ModelDescription,
    request_id: str,
) -> list[scheduler_pb2.Add]:
    """Returns a command for each choice, those of the first prompt first.

    The choices of a prompt differ in name and seed.

    Raises:
        ApiError: A parameter does not fit the model or another parameter.
    """
    max_tokens = [_max_tokens(body, len(prompt.token_ids), model) for prompt in prompts]
    common = _common(body, predictions, model)
    if common.min_tokens > min(max_tokens):
        raise ApiError(
            400,
            f"min_tokens: {common.min_tokens} is more than the {min(max_tokens)} tokens that may "
            "be generated",
            param="min_tokens",
            code="invalid_value",
        )
    num_candidates = body.num_candidates()
    several = len(prompts) * num_candidates > 1
    adds: list[scheduler_pb2.Add] = []
    for prompt, most in zip(prompts, max_tokens, strict=True):
        for candidate in range(num_candidates):
            add = scheduler_pb2.Add()
            add.CopyFrom(common)
            add.request_id = f"{request_id}-{len(adds)}" if several else request_id
            add.prompt_token_ids = to_bytes(prompt.token_ids)
            # An answer that is the prompt alone has a token too; it is not told.
            add.max_tokens = max(most, 1)
            add.sampling.seed = choice_seed(common.sampling.seed, candidate)
            adds.append(add)
    return adds


def _common(
    body: GenerationBody, predictions: Sequence[SentPrediction], model: ModelDescription
) -> scheduler_pb2.Add:
    """Returns what the commands of all choices have in common."""
    if body.priority:
        require_priority_policy(model)
    _require_drafts(body.num_speculative_tokens, model)
    stop_token_ids = body.stop_token_ids or []
    require_known(stop_token_ids, "stop_token_ids", model)
    if not body.ignore_eos or body.structure() is not None:
        # Behind the end of a grammar nothing else can come.
        stop_token_ids = [*stop_token_ids, *model.eos_token_ids]
    token_ids = [prediction.token_ids for prediction in predictions]
    lengths = [len(one) for one in token_ids]
    return scheduler_pb2.Add(
        predicted_token_ids=to_bytes(list(chain.from_iterable(token_ids))),
        num_predicted_tokens=to_bytes(lengths if len(lengths) > 1 else []),
        sampling=_sampling(body, model),
        stop_token_ids=to_bytes(list(dict.fromkeys(stop_token_ids))),
        min_tokens=body.min_tokens or 0,
        priority=body.priority or 0,
        cache_salt=cache_salt(current_client.get().name, body.cache_salt),
        max_draft_tokens=body.num_speculative_tokens,
        # An answer that a stop string ends has no account but that of its steps.
        wants_prediction_positions=bool(body.include_provenance or (predictions and body.stop)),
    )


def _require_drafts(asked: int | None, model: ModelDescription) -> None:
    most = model.max_draft_tokens
    if asked is not None and most is not None and asked > most:
        raise ApiError(
            400,
            f"num_speculative_tokens: must be at most {most} on this server",
            param="num_speculative_tokens",
            code="invalid_value",
        )


def _max_tokens(body: GenerationBody, num_prompt_tokens: int, model: ModelDescription) -> int:
    asked = body.asked_max_tokens()
    left = model.max_model_len - num_prompt_tokens
    needed = max(asked or 0, 1)
    if needed > left:
        raise ApiError(
            400,
            f"This model's maximum context length is {model.max_model_len} tokens. However, the "
            f"request has {num_prompt_tokens} tokens in the prompt and asks for {needed} in the "
            "answer.",
            param=body.prompt_field,
            code="context_length_exceeded",
        )
    if asked is None:
        return left if body.default_max_tokens is None else min(body.default_max_tokens, left)
    return asked


def _sampling(body: GenerationBody, model: ModelDescription) -> sampling_pb2.SamplingParams:
    biases = body.logit_bias or {}
    require_known(list(biases), "logit_bias", model)
    return sampling_pb2.SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(body.top_k or 0, 0),
        top_p=1.0 if body.top_p is None else max(body.top_p, _SMALLEST_TOP_P),
        min_p=body.min_p or 0.0,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias_token_ids=to_bytes(list(biases)),
        logit_bias_values=floats_to_bytes(list(biases.values())),
        num_logprobs=_num_logprobs(body),
        num_prompt_logprobs=body.num_logprobs() if body.echoes_prompt() else None,
    )


def _num_logprobs(body: GenerationBody) -> int | None:
    """Returns how many of the likeliest tokens are told of per token; None for no logprobs."""
    if body.num_logprobs() is None and body.num_candidates() > (body.n or 1):
        # The best of several answers are those with the highest.
        return 0
    return body.num_logprobs()
