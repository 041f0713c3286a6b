from pydantic import BaseModel, ConfigDict


class OpenAIBaseModel(BaseModel):
    model_config = ConfigDict(extra="allow")


class GenerationRequest(OpenAIBaseModel):
    """What requests of all endpoints have."""

    prompt: str
    max_tokens: int = 1000
    n: int = 1
    stream: bool = False
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None


class ErrorResponse(OpenAIBaseModel):
    message: str
    param: str | None = None


class CompletionTokenUsageInfo(OpenAIBaseModel):
    reasoning_tokens: int = 0


class UsageInfo(OpenAIBaseModel):
    completion_tokens: int = 0
    completion_tokens_details: CompletionTokenUsageInfo | None = None


class Answer(OpenAIBaseModel):
    """A response of either endpoint."""

    id: str
    texts: list[str]
    usage: UsageInfo
