from pydantic import BaseModel, ConfigDict


class OpenAIBaseModel(BaseModel):
    model_config = ConfigDict(extra="allow")


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
