"""From arguments to the message of a request."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from optimist.v1 import inference_pb2


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    """`system`, `developer`, `user` or `assistant`."""
    content: str


Prompt = str | Sequence[int] | Sequence[Message]
"""A text that is continued, the same as tokens, or a conversation."""

Prediction = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""A text or its tokens, or several of either."""


class Options(TypedDict, total=False):
    """What a request may ask for; what is left out has the server's default."""

    model: str
    """The one that is served, if left out."""
    prediction: Prediction
    """The expected answer, or several, the likeliest one first: all as text or all as tokens."""
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
    """Asks for a JSON object."""
    json_schema: Mapping[str, object] | str
    """Asks for JSON that follows a schema."""
    grammar: str
    """Asks for what a grammar in llguidance's Lark dialect describes."""
    num_logprobs: int
    """Asks for log-probabilities, and those of as many of the likeliest tokens."""
    include_provenance: bool
    include_speculation: bool
    num_speculative_tokens: int
    priority: int
    cache_salt: str
    timeout: float
    """Seconds until the call is ended; the client's own, if left out."""


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
    fields: dict[str, Any] = dict(options)
    fields.pop("timeout", None)
    unknown = fields.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no option {sorted(unknown)[0]}")
    if sum(name in fields for name in _STRUCTURES) > 1:
        raise ValueError(f"only one of {', '.join(_STRUCTURES)} can be asked for")
    sampling = {name: fields.pop(name) for name in _SAMPLING if name in fields}
    fields["sampling"] = inference_pb2.Sampling(**sampling)
    if "prediction" in fields:
        fields["predictions"] = _predictions(fields.pop("prediction"))
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    schema = fields.get("json_schema")
    if schema is not None and not isinstance(schema, str):
        fields["json_schema"] = json.dumps(schema)
    return inference_pb2.GenerateRequest(**fields, **_prompt(prompt))


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"text": prompt}
    if len(prompt) and isinstance(prompt[0], Message):
        messages = [
            inference_pb2.Message(role=message.role, content=message.content)
            for message in cast("Sequence[Message]", prompt)
        ]
        return {"chat": inference_pb2.Chat(messages=messages)}
    return {"token_ids": inference_pb2.TokenIds(ids=cast("Sequence[int]", prompt))}


def _predictions(given: Prediction) -> list[inference_pb2.Prediction]:
    is_one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
    several = cast("Sequence[str] | Sequence[Sequence[int]]", [given] if is_one else given)
    return [
        inference_pb2.Prediction(text=one)
        if isinstance(one, str)
        else inference_pb2.Prediction(token_ids=inference_pb2.TokenIds(ids=one))
        for one in several
    ]
