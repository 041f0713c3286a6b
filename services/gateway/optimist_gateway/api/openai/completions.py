"""POST /v1/completions: the body of a request, and its answers."""

from typing import Annotated, Any, Self

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field, model_validator
from starlette.responses import Response

from optimist_gateway.api.openai.answer_parts import completion_logprobs
from optimist_gateway.api.openai.answering import STREAMED, Answering
from optimist_gateway.api.openai.bodies.base import INT32_MAX, invalid
from optimist_gateway.api.openai.bodies.generation import GenerationBody, TokenIds, named_tokens
from optimist_gateway.api.openai.body_route import body_route
from optimist_gateway.api.openai.chunk_writer import ChoicesWriter, ChoiceWriter
from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.error import Path
from optimist_gateway.core.request import Request, Structure
from optimist_gateway.generation.generation import Generation, Service

PATH = "/v1/completions"
MAX_PROMPTS = 1024
_DEFAULT_MAX_TOKENS = 16
MAX_COMPLETION_LOGPROBS = 5


class CompletionBody(GenerationBody):
    """One prompt or several, each as text or as tokens."""

    prompt: (
        str
        | TokenIds
        | Annotated[
            list[str | TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)
        ]
    )
    max_tokens: int | None = Field(None, ge=0, le=INT32_MAX)
    """0 only with `echo`: the prompt alone comes back."""
    suffix: str | None = None
    """What follows the answer, for models that fill in the middle."""
    echo: bool | None = None
    """Begins every answer with the prompt."""
    logprobs: int | None = Field(None, ge=0, le=MAX_COMPLETION_LOGPROBS)
    """Reports the log-probability of each token, and of as many of the likeliest there."""

    def prompts(self) -> dict[str, Any]:
        """Returns the prompts by the names of their fields."""
        if isinstance(self.prompt, str) or not self.prompt:
            return {"prompt": self.prompt}
        return named_tokens("prompt", self.prompt)

    def field_names(self) -> dict[Path, str]:
        """See `AnswerBody.field_names`."""
        names = super().field_names() | {("prompts",): "prompt"}
        for index, name in enumerate(self.prompts()):
            names[("prompts", index)] = name
        return names

    def request(self) -> Request:
        """Returns the request."""
        content = self.one_structure()
        return self.as_request(
            prompts=tuple(self.prompts().values()),
            suffix=self.suffix or "",
            max_tokens=self.max_tokens,
            default_max_tokens=_DEFAULT_MAX_TOKENS,
            num_logprobs=self.logprobs,
            echo=bool(self.echo),
            structure=None if content is None else Structure(content),
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens", "max_tokens: 0 is only allowed when echo is true")
        if self.suffix and self.echo:
            raise invalid("suffix", "suffix: must not be set when echo is true")
        return self


class CompletionWriter(ChoiceWriter):
    """Writes plain text."""

    content = "text"

    def choice(self, piece: Piece, *, is_whole: bool) -> dict[str, Any]:
        """See `ChoiceWriter.choice`."""
        reason, logprobs = piece.finish_reason, completion_logprobs(piece.logprobs)
        ended = reason.api_name if reason is not None else None
        return {"text": piece.text, "logprobs": logprobs, "finish_reason": ended}


def completion_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=body_route(service))
    answering = Answering(service, PATH, "cmpl-")

    def write(generation: Generation) -> ChoicesWriter:
        return ChoicesWriter(generation, ("text_completion", "text_completion"), CompletionWriter)

    @router.post(PATH, responses=STREAMED)
    async def completions(request: HttpRequest, body: CompletionBody) -> Response:
        """Continues a text, whole or as server-sent events."""
        return await answering.answer(request, body.request(), write)

    return router
