"""What the answers in the OpenAPI document are made of."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def left_out() -> Any:
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


class PromptTokensDetails(Answer):
    """What is known of the tokens of the prompt."""

    cached_tokens: int
    audio_tokens: int


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
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    num_passes: int = Field(default_factory=left_out)
    speculation: Speculation = Field(default_factory=left_out)


class Place(Answer):
    """Where in a prediction a segment stands."""

    index: int
    start: int = Field(default_factory=left_out)
    end: int = Field(default_factory=left_out)
    token_start: int = Field(default_factory=left_out)
    token_end: int = Field(default_factory=left_out)


class PromptPlace(Answer):
    """Where in the prompt a segment stands."""

    message: int = Field(default_factory=left_out)
    start: int = Field(default_factory=left_out)
    end: int = Field(default_factory=left_out)
    token_start: int = Field(default_factory=left_out)
    token_end: int = Field(default_factory=left_out)


class Segment(Answer):
    """Text of one source."""

    source: str
    text: str
    num_tokens: int
    prediction: Place = Field(default_factory=left_out)
    prompt: PromptPlace = Field(default_factory=left_out)


class Choice(Answer):
    """What all choices have."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] = Field(default_factory=left_out)
    num_accepted_tokens: int = Field(default_factory=left_out)
    predicted_text_length: int = Field(default_factory=left_out)
    provenance: list[Segment] = Field(default_factory=left_out)


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


class CompletionLogprobs(Answer):
    """How likely the tokens of a text were."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
