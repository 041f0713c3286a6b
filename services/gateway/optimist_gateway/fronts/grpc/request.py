"""From the message of a request to the body that all fronts share."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import orjson
from pydantic import Field

from optimist.v1 import inference_pb2
from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.fronts.openai.bodies.chat import ChatCompletionBody
from optimist_gateway.fronts.openai.bodies.completion import CompletionBody
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody
from optimist_gateway.fronts.openai.errors import ApiError
from optimist_gateway.generation.field_names import FieldNames
from optimist_gateway.generation.generation import EncodePrompts
from optimist_gateway.text.prompt import chat_prompt, completion_prompts


class PromptBody(CompletionBody):
    """A prompt that is no conversation; its answer may be as long as fits."""

    default_max_tokens: ClassVar[int | None] = None

    max_tokens: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


@dataclass(frozen=True)
class GenerationRequest:
    """A request whose fields are checked."""

    body: GenerationBody
    encode_prompts: EncodePrompts
    names: FieldNames
    """What the fields of the body are called in the message."""


def generation_request(
    message: inference_pb2.GenerateRequest, model_name: str
) -> GenerationRequest:
    """Returns what a message asks for.

    Args:
        message: The request.
        model_name: The model if it names none.

    Raises:
        ApiError: Something is wrong with it; the error names the field of the message.
    """
    names: dict[str, str] = {}
    body = {
        **_answer_fields(message, names),
        **_predictions(message.predictions, names),
        "model": message.model or model_name,
    }
    if message.WhichOneof("prompt") == "chat":
        return _chat(message, body, names)
    return _completion(message, body, names)


def _chat(
    message: inference_pb2.GenerateRequest, body: dict[str, Any], names: dict[str, str]
) -> GenerationRequest:
    names["messages"] = "chat.messages"
    body["messages"] = [{"role": one.role, "content": one.content} for one in message.chat.messages]
    if message.HasField("num_logprobs"):
        names["top_logprobs"] = "num_logprobs"
        body |= {"logprobs": True, "top_logprobs": message.num_logprobs}
    field_names = FieldNames(names)
    chat = field_names.validated(ChatCompletionBody, body)
    return GenerationRequest(chat, partial(chat_prompt, chat), field_names)


def _completion(
    message: inference_pb2.GenerateRequest, body: dict[str, Any], names: dict[str, str]
) -> GenerationRequest:
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise ApiError(
            400,
            "prompt: one of text, token_ids and chat must be set",
            param="prompt",
            code="missing_required_parameter",
        )
    if kind == "text":
        names["prompt"] = "text"
        body["prompt"] = message.text
    else:
        names["prompt"] = "token_ids.ids"
        body["prompt"] = list(message.token_ids.ids)
    if message.HasField("num_logprobs"):
        names["logprobs"] = "num_logprobs"
        body["logprobs"] = message.num_logprobs
    field_names = FieldNames(names)
    completion = field_names.validated(PromptBody, body)
    return GenerationRequest(completion, partial(completion_prompts, completion), field_names)


def _answer_fields(message: inference_pb2.GenerateRequest, names: dict[str, str]) -> dict[str, Any]:
    """Returns how answers are to be generated; adds the names of the fields that differ."""
    sampling: dict[str, Any] = {field.name: value for field, value in message.sampling.ListFields()}
    if "logit_bias" in sampling:
        sampling["logit_bias"] = dict(sampling["logit_bias"])
    names |= {name: f"sampling.{name}" for name in sampling}
    fields: dict[str, Any] = {
        **sampling,
        "min_tokens": message.min_tokens,
        "stop": list(message.stop),
        "stop_token_ids": list(message.stop_token_ids),
        "ignore_eos": message.ignore_eos,
        "include_provenance": message.include_provenance,
        "include_speculation": message.include_speculation,
        "priority": message.priority,
    }
    for name in ("max_tokens", "n", "num_speculative_tokens"):
        if message.HasField(name):
            fields[name] = getattr(message, name)
    if message.cache_salt:
        fields["cache_salt"] = message.cache_salt
    return fields | _structure(message, names)


def _structure(message: inference_pb2.GenerateRequest, names: dict[str, str]) -> dict[str, Any]:
    kind = message.WhichOneof("structure")
    if kind is None or (kind == "json_object" and not message.json_object):
        return {}
    names["structured_outputs"] = kind
    name = "grammar" if kind == "grammar" else "json"
    names[f"structured_outputs.{name}"] = kind
    if kind == "json_object":
        return {"structured_outputs": {name: {"type": "object"}}}
    wanted = message.grammar if kind == "grammar" else _schema(message.json_schema)
    return {"structured_outputs": {name: wanted}}


def _schema(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ApiError(
            400,
            f"json_schema: not JSON (at character {error.pos})",
            param="json_schema",
            code="invalid_json",
        ) from None


def _predictions(
    messages: Iterable[inference_pb2.Prediction], names: dict[str, str]
) -> dict[str, Any]:
    """Returns the fields of the predictions; adds their names."""
    texts: list[dict[str, Any]] = []
    token_ids: list[list[int]] = []
    for index, prediction in enumerate(messages):
        place = f"predictions[{index}]"
        kind = prediction.WhichOneof("expected")
        if kind == "text" and not token_ids:
            names[f"prediction[{index}].content"] = f"{place}.text"
            texts.append({"type": "content", "content": prediction.text})
        elif kind == "token_ids" and not texts:
            names[f"predicted_token_ids[{index}]"] = f"{place}.token_ids.ids"
            token_ids.append(list(prediction.token_ids.ids))
        else:
            raise ApiError(
                400,
                f"{place}: must be "
                + ("text or tokens" if kind is None else "of the same kind as those before it"),
                param=place,
                code="invalid_value",
            )
    names |= dict.fromkeys(("prediction", "predicted_token_ids"), "predictions")
    if token_ids:
        return {"predicted_token_ids": token_ids}
    return {"prediction": texts} if texts else {}
