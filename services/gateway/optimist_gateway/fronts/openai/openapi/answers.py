"""What answers look like, for the OpenAPI document.

Answers are written without these, for speed; a test holds them to it.
"""

from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema

from optimist_gateway.fronts.openai.openapi.parts import (
    Answer,
    ChatLogprobs,
    Choice,
    CompletionLogprobs,
    Segment,
    Speculation,
    TokenLogprob,
    ToolCallAnswer,
    Usage,
    left_out,
)

REF = "#/components/schemas/{model}"


class MessageAnswer(Answer):
    """The message of the model."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallAnswer] = Field(default_factory=left_out)


class ChatChoice(Choice):
    """One answer to a chat."""

    message: MessageAnswer
    logprobs: ChatLogprobs | None


class CompletionChoice(Choice):
    """One continuation."""

    text: str
    logprobs: CompletionLogprobs | None


class ChatCompletion(Answer):
    """A whole answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str = Field(default_factory=left_out)
    choices: list[ChatChoice]
    usage: Usage


class Completion(Answer):
    """A whole answer to one prompt or several."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str = Field(default_factory=left_out)
    choices: list[CompletionChoice]
    usage: Usage


class OutputText(Answer):
    """The text of a message."""

    type: Literal["output_text"]
    annotations: list[Any]
    logprobs: list[TokenLogprob]
    text: str


class OutputMessage(Answer):
    """A message in a response."""

    type: Literal["message"]
    id: str
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(Answer):
    """A call in a response."""

    type: Literal["function_call"]
    id: str
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class ResponseUsage(Answer):
    """The account of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int | dict[str, int] | None]
    total_tokens: int
    speculation: Speculation = Field(default_factory=left_out)


class IncompleteDetails(Answer):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseAnswer(Answer):
    """A whole response; the settings of its request come back with it."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    model: str
    system_fingerprint: str = Field(default_factory=left_out)
    output: list[OutputMessage | OutputCall] = Field(min_length=1)
    usage: ResponseUsage
    provenance: list[Segment] = Field(default_factory=left_out)
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, None]
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class Model(Answer):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["optimist"]
    max_model_len: int | None
    system_fingerprint: str = Field(default_factory=left_out)


class ModelList(Answer):
    """All models: the one."""

    object: Literal["list"]
    data: list[Model] = Field(min_length=1, max_length=1)


class Tokens(Answer):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(Answer):
    """The text of tokens."""

    prompt: str


class TokenizerInfo(Answer):
    """A tokenizer's class and special tokens."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    vocab_size: int
    chat_template: str | None = None


class Version(Answer):
    """The version of Optimist."""

    version: str


class Working(Answer):
    """Requests can be served."""

    status: Literal["ok"]


class SchedulerCounts(Answer):
    """How many schedulers there are."""

    known: int
    connected: int
    sound: int


class Healthy(Working):
    """Requests can be served, and by whom."""

    schedulers: SchedulerCounts


class Unavailable(Answer):
    """Requests cannot be served."""

    status: Literal["unavailable"]
    reason: str
    schedulers: SchedulerCounts = Field(default_factory=left_out)


ANSWERS: dict[str, type[Answer]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses": ResponseAnswer,
    "/v1/models": ModelList,
    "/v1/models/{name}": Model,
    "/tokenize": Tokens,
    "/detokenize": DetokenizedText,
    "/tokenizer_info": TokenizerInfo,
    "/version": Version,
    "/health": Healthy,
    "/ready": Working,
    "/startup": Working,
    "/live": Working,
}
"""The whole answer of each path."""


def answer_schemas() -> dict[str, Any]:
    """Returns the schemas of all answers by name."""
    models: set[type[Answer]] = {*ANSWERS.values(), Unavailable}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, document = models_json_schema(
        [(model, "serialization") for model in ordered], ref_template=REF
    )
    schemas: dict[str, Any] = document["$defs"]
    return schemas
