"""From the body of a request to the command for the scheduler."""

import secrets
from itertools import chain

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import floats_to_bytes, to_bytes
from optimist_gateway.api.chat_body import ChatCompletionBody
from optimist_gateway.api.errors import ApiError
from optimist_gateway.api.requests import CompletionBody, GenerationBody
from optimist_gateway.core.seed import choice_seed
from optimist_gateway.known_token import require_known
from optimist_gateway.limits import Limits
from optimist_gateway.prediction import predicted_tokens
from optimist_gateway.scheduler_client import ModelDescription
from optimist_gateway.tokenizer import ChatTemplateError, Tokenizer

COMPLETION_MAX_TOKENS = 16
# The contract reads 0 as 1; this keeps the most likely token alone, as 0 does in OpenAI's API.
_SMALLEST_TOP_P = 1e-6


async def chat_prompt(
    body: ChatCompletionBody, tokenizer: Tokenizer, model: ModelDescription
) -> list[int]:
    """Returns the prompt's tokens; raises ApiError if the messages do not make a prompt."""
    messages = [message.message() for message in body.messages]
    length = sum(len(message.content) for message in messages)
    _require_tokenizable(length, "messages", tokenizer, model)
    try:
        return await tokenizer.encode_messages(messages)
    except ChatTemplateError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from None


async def completion_prompt(
    body: CompletionBody, tokenizer: Tokenizer, model: ModelDescription
) -> list[int]:
    """Returns the prompt's tokens; raises ApiError if there are none or unknown ones."""
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        _require_tokenizable(len(prompt), "prompt", tokenizer, model)
        token_ids = await tokenizer.encode_prompt(prompt)
    else:
        token_ids = [token for token in prompt if isinstance(token, int)]
        require_known(token_ids, "prompt", model)
    if not token_ids:
        raise ApiError(400, "prompt: must not be empty", param="prompt", code="invalid_value")
    return token_ids


async def prepare(
    body: GenerationBody,
    prompt_token_ids: list[int],
    tokenizer: Tokenizer,
    model: ModelDescription,
    limits: Limits,
    request_id: str,
) -> scheduler_pb2.Add:
    """Returns the command that adds the request, or its first choice.

    Raises:
        ApiError: A parameter does not fit the model or another parameter.
    """
    max_tokens = _max_tokens(body, len(prompt_token_ids), model)
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens: {min_tokens} is more than the {max_tokens} tokens that may be generated",
            param="min_tokens",
            code="invalid_value",
        )
    stop_token_ids = body.stop_token_ids or []
    require_known(stop_token_ids, "stop_token_ids", model)
    if not body.ignore_eos:
        stop_token_ids = [*stop_token_ids, *model.eos_token_ids]
    predictions = await predicted_tokens(body, tokenizer, model, limits.max_prediction_bytes)
    lengths = [len(prediction) for prediction in predictions]
    return scheduler_pb2.Add(
        request_id=request_id,
        prompt_token_ids=to_bytes(prompt_token_ids),
        predicted_token_ids=to_bytes(list(chain.from_iterable(predictions))),
        num_predicted_tokens=to_bytes(lengths if len(lengths) > 1 else []),
        sampling=_sampling(body, model),
        max_tokens=max_tokens,
        stop_token_ids=to_bytes(list(dict.fromkeys(stop_token_ids))),
        min_tokens=min_tokens,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        max_draft_tokens=body.num_speculative_tokens,
    )


def choice_requests(add: scheduler_pb2.Add, num_choices: int) -> list[scheduler_pb2.Add]:
    """Returns a command for each choice; they differ in name and seed."""
    if num_choices == 1:
        return [add]
    requests = []
    for index in range(num_choices):
        request = scheduler_pb2.Add()
        request.CopyFrom(add)
        request.request_id = f"{add.request_id}-{index}"
        request.sampling.seed = choice_seed(add.sampling.seed, index)
        requests.append(request)
    return requests


def _max_tokens(body: GenerationBody, num_prompt_tokens: int, model: ModelDescription) -> int:
    asked = body.max_tokens
    if isinstance(body, ChatCompletionBody) and body.max_completion_tokens is not None:
        if asked is not None:
            raise ApiError(
                400,
                "max_tokens and max_completion_tokens must not both be set",
                param="max_tokens",
                code="invalid_value",
            )
        asked = body.max_completion_tokens
    left = model.max_model_len - num_prompt_tokens
    needed = 1 if asked is None else asked
    if needed > left:
        raise ApiError(
            400,
            f"This model's maximum context length is {model.max_model_len} tokens. However, the "
            f"request has {num_prompt_tokens} tokens in the prompt and asks for {needed} in the "
            "answer.",
            param="prompt" if isinstance(body, CompletionBody) else "messages",
            code="context_length_exceeded",
        )
    if asked is None and isinstance(body, CompletionBody):
        return min(COMPLETION_MAX_TOKENS, left)
    return left if asked is None else asked


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
    )


def _require_tokenizable(
    num_characters: int, param: str, tokenizer: Tokenizer, model: ModelDescription
) -> None:
    """Refuses a text that is too long before time is spent on tokenizing it."""
    if num_characters > model.max_model_len * tokenizer.longest_token:
        raise ApiError(
            400,
            f"This model's maximum context length is {model.max_model_len} tokens. However, the "
            f"request has {num_characters} characters.",
            param=param,
            code="context_length_exceeded",
        )
