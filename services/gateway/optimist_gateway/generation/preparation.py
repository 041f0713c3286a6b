"""From a request to the commands for the scheduler."""

import secrets
from collections.abc import Sequence
from itertools import chain

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_gateway.core.answer.spans import Prompt, SentPrediction
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.request import Request, Sampling, cache_salt, choice_seed
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

    The choices of a prompt differ in name and seed.

    Raises:
        FieldError: A parameter does not fit the model or another parameter.
    """
    max_tokens = [_max_tokens(request, len(prompt.token_ids), model) for prompt in prompts]
    common = _common(request, predictions, model)
    if common.min_tokens > min(max_tokens):
        raise FieldError(
            ("min_tokens",),
            f"{common.min_tokens} is more than the {min(max_tokens)} tokens that may be generated",
        )
    adds: list[scheduler_pb2.Add] = []
    for prompt, most in zip(prompts, max_tokens, strict=True):
        for candidate in range(request.num_candidates):
            add = scheduler_pb2.Add()
            add.CopyFrom(common)
            is_one_of_several = request.num_choices > 1
            add.request_id = f"{request_id}-{len(adds)}" if is_one_of_several else request_id
            add.prompt_token_ids = to_bytes(prompt.token_ids)
            # An answer that is the prompt alone has a token too; it is not reported.
            add.max_tokens = max(most, 1)
            add.sampling.seed = choice_seed(common.sampling.seed, candidate)
            adds.append(add)
    return adds


def _common(
    request: Request, predictions: Sequence[SentPrediction], model: ModelDescription
) -> scheduler_pb2.Add:
    """Returns what the commands of all choices have in common."""
    if request.priority:
        model.require_priorities()
    _require_drafts(request.num_speculative_tokens, model)
    model.require_known(request.stop_token_ids, ("stop_token_ids",))
    stop_token_ids = [*request.stop_token_ids]
    if not request.ignore_eos or request.structure is not None:
        # After the end of a grammar nothing else can come.
        stop_token_ids += model.eos_token_ids
    token_ids = [prediction.token_ids for prediction in predictions]
    lengths = [len(one) for one in token_ids]
    model.require_known(list(request.sampling.logit_bias), ("sampling", "logit_bias"))
    return scheduler_pb2.Add(
        predicted_token_ids=to_bytes(list(chain.from_iterable(token_ids))),
        num_predicted_tokens=to_bytes(lengths if len(lengths) > 1 else []),
        sampling=_sampling(request.sampling, request),
        stop_token_ids=to_bytes(list(dict.fromkeys(stop_token_ids))),
        min_tokens=request.min_tokens,
        priority=request.priority,
        cache_salt=cache_salt(current_client.get().name, request.cache_salt),
        max_draft_tokens=request.num_speculative_tokens,
        # An answer that a stop string ends has no account but that of its steps.
        wants_prediction_positions=bool(
            request.include_provenance or (predictions and request.stop)
        ),
    )


def _require_drafts(asked: int | None, model: ModelDescription) -> None:
    most = model.max_draft_tokens
    if asked is not None and most is not None and asked > most:
        raise FieldError(("num_speculative_tokens",), f"must be at most {most} on this server")


def _max_tokens(request: Request, num_prompt_tokens: int, model: ModelDescription) -> int:
    asked = request.max_tokens
    left = model.max_model_len - num_prompt_tokens
    needed = max(asked or 0, 1)
    if needed > left:
        raise FieldError(
            ("prompts",),
            f"This model's maximum context length is {model.max_model_len} tokens. However, the "
            f"request has {num_prompt_tokens} tokens in the prompt and asks for {needed} in the "
            "answer.",
            code="context_length_exceeded",
            is_sentence=True,
        )
    if asked is None:
        return left if request.default_max_tokens is None else min(request.default_max_tokens, left)
    return asked


def _sampling(sampling: Sampling, request: Request) -> sampling_pb2.SamplingParams:
    num_logprobs = request.num_logprobs
    if num_logprobs is None and request.num_candidates > request.n:
        # The best of several answers are those with the highest.
        num_logprobs = 0
    return sampling_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=max(sampling.top_p, _SMALLEST_TOP_P),
        min_p=sampling.min_p,
        seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias_token_ids=to_bytes(list(sampling.logit_bias)),
        logit_bias_values=floats_to_bytes(list(sampling.logit_bias.values())),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=request.num_logprobs if request.echo else None,
    )
