"""What answers look like, for the OpenAPI document.

Answers are written without these, for speed; a test holds them to it.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"


def _left_out() -> Any:
    """Stands for fields that an answer may lack, and whose default is not in the document."""


class Answer(BaseModel):
    """Base of every object in an answer: there are no other fields."""

    model_config = ConfigDict(extra="forbid")


class CompletionTokensDetails(Answer):
    """Where the tokens of the answer came from."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int | None
    reasoning_tokens: int
    audio_tokens: int
    tokens_by_source: dict[str, int]


class Speculation(Answer):
    """What speculation was worth."""

    num_passes: int
    num_drafted_tokens: int | None
    num_accepted_tokens: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    accepted_length_histogram: list[int] = Field(max_length=65)


class Usage(Answer):
    """The account of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails
    num_passes: int = 0
    speculation: Speculation = Field(default_factory=_left_out)


class Place(Answer):
    """Where in a prediction a segment stands."""

    index: int
    start: int = 0
    end: int = 0
    token_start: int = 0
    token_end: int = 0


class Segment(Answer):
    """Text of one source."""

    source: str
    text: str
    num_tokens: int
    prediction: Place = Field(default_factory=_left_out)


class Choice(Answer):
    """What all choices have."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] = []
    num_accepted_tokens: int = 0
    predicted_text_length: int = 0
    provenance: list[Segment] = []


class CandidateLogprob(Answer):
    """A token, as likely as it was."""

    token: str
    logprob: float | None
    bytes: list[int]


class TokenLogprob(CandidateLogprob):
    """A token of the answer, and the likeliest ones in its place."""

    top_logprobs: list[CandidateLogprob]


class ChatLogprobs(Answer):
    """How likely the tokens of a message were."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunctionAnswer(Answer):
    """A function and the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCallAnswer(Answer):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunctionAnswer


class MessageAnswer(Answer):
    """The message of the model."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallAnswer] = []


class ChatChoice(Choice):
    """One answer to a chat."""

    message: MessageAnswer
    logprobs: ChatLogprobs | None


class CompletionLogprobs(Answer):
    """How likely the tokens of a text were."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


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
    system_fingerprint: str = ""
    choices: list[ChatChoice]
    usage: Usage


class Completion(Answer):
    """A whole answer to one prompt or several."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str = ""
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
    speculation: Speculation = Field(default_factory=_left_out)


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
    system_fingerprint: str = ""
    output: list[OutputMessage | OutputCall] = Field(min_length=1)
    usage: ResponseUsage
    provenance: list[Segment] = []
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
    system_fingerprint: str = ""


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


class Unavailable(Answer):
    """Requests cannot be served."""

    status: Literal["unavailable"]
    reason: str


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
    "/health": Working,
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
