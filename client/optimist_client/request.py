"""From arguments to the message of a request."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict, cast

from optimist.v1 import inference_pb2


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    """`system`, `developer`, `user` or `assistant`."""
    content: str
    name: str | None = None
    """Who of several says it, for chat templates that show it."""


Prompt = str | Sequence[int] | Sequence[Message]
"""A text that is continued, the same as tokens, or a conversation."""

Content = Mapping[str, object]
"""A text as OpenAI's API writes it, `{"type": "content", "content": TEXT}`."""

Prediction = (
    str | Content | Sequence[int] | Sequence[str] | Sequence[Content] | Sequence[Sequence[int]]
)
"""A text or its tokens, or several of either."""


class Options(TypedDict, total=False):
    """The same as keywords, see `SamplingParams`."""

    model: str
    prediction: Prediction
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    n: int
    json_object: bool
    json_schema: Mapping[str, object] | str
    grammar: str
    num_logprobs: int
    include_provenance: bool
    include_speculation: bool
    num_speculative_tokens: int
    priority: int
    cache_salt: str
    timeout: float


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What a request may ask for; None is the server's default."""

    model: str | None = None
    """The one that is served by default."""
    prediction: Prediction | None = None
    """The expected answer, or several, the likeliest one first: all as text or all as tokens."""
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    json_object: bool | None = None
    """Asks for a JSON object."""
    json_schema: Mapping[str, object] | str | None = None
    """Asks for JSON that follows a schema."""
    grammar: str | None = None
    """Asks for what a grammar in llguidance's Lark dialect describes."""
    num_logprobs: int | None = None
    """Asks for log-probabilities, and those of as many of the likeliest tokens."""
    include_provenance: bool | None = None
    include_speculation: bool | None = None
    num_speculative_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    """Seconds until the call is ended; the client's own by default."""

    def options(self) -> Options:
        """Returns what is not left to the server."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        return cast("Options", given)


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)
_STRUCTURES = ("json_object", "json_schema", "grammar")


def generate_request(prompt: Prompt, options: Options) -> inference_pb2.GenerateRequest:
    """Returns the message; `timeout` is no part of it.

    Raises:
        TypeError: There is no such option, or a value has a wrong type.
        ValueError: A number does not fit its field, or two structures are asked for.
    """
    given: dict[str, Any] = dict(options)
    given.pop("timeout", None)
    unknown = given.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no option {sorted(unknown)[0]}")
    if sum(name in given for name in _STRUCTURES) > 1:
        raise ValueError(f"only one of {', '.join(_STRUCTURES)} can be asked for")
    sampling = {name: given.pop(name) for name in _SAMPLING if name in given}
    given["sampling"] = inference_pb2.Sampling(**sampling)
    if "prediction" in given:
        given["predictions"] = _predictions(given.pop("prediction"))
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    schema = given.get("json_schema")
    if schema is not None and not isinstance(schema, str):
        given["json_schema"] = json.dumps(schema)
    return inference_pb2.GenerateRequest(**given, **_prompt(prompt))


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"text": prompt}
    if len(prompt) and isinstance(prompt[0], Message):
        messages = [
            inference_pb2.Message(role=message.role, content=message.content, name=message.name)
            for message in cast("Sequence[Message]", prompt)
        ]
        return {"chat": inference_pb2.Chat(messages=messages)}
    return {"token_ids": inference_pb2.TokenIds(ids=cast("Sequence[int]", prompt))}


def _predictions(given: Prediction) -> list[inference_pb2.Prediction]:
    is_one = isinstance(given, str | Mapping) or (len(given) > 0 and isinstance(given[0], int))
    several = cast("Sequence[str | Content | Sequence[int]]", [given] if is_one else given)
    return [_predicted(one) for one in several]


def _predicted(given: str | Content | Sequence[int]) -> inference_pb2.Prediction:
    if isinstance(given, Mapping):
        if given.keys() != {"type", "content"} or given["type"] != "content":
            raise ValueError('prediction: must be {"type": "content", "content": TEXT}')
        given = cast("str", given["content"])
    if isinstance(given, str):
        return inference_pb2.Prediction(text=given)
    return inference_pb2.Prediction(token_ids=inference_pb2.TokenIds(ids=given))
