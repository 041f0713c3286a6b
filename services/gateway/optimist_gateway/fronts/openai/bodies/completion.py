"""The body of POST /v1/completions."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from optimist_gateway.fronts.openai.bodies.base import Text
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody, TokenIds
from optimist_gateway.fronts.openai.bodies.unsupported import OF_COMPLETIONS, KnownParameters

MAX_PROMPTS = 1024
MAX_COMPLETION_LOGPROBS = 5
_INT32_MAX = 2**31 - 1


class CompletionBody(GenerationBody):
    """One prompt or several, each as text or as tokens."""

    default_max_tokens: ClassVar[int | None] = 16
    known_parameters: ClassVar[KnownParameters] = OF_COMPLETIONS

    prompt: (
        Text
        | TokenIds
        | Annotated[
            list[Text | TokenIds], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)
        ]
    )
    max_tokens: int | None = Field(None, ge=0, le=_INT32_MAX)
    """0 only with `echo`: the prompt alone comes back."""
    best_of: int | None = Field(None, ge=1, le=_INT32_MAX)
    """How many answers to generate, of which the `n` likeliest are given; the server limits it."""
    echo: bool | None = None
    """Begins every answer with the prompt."""
    logprobs: int | None = Field(None, ge=0, le=MAX_COMPLETION_LOGPROBS)
    """Tells the log-probability of each token, and of as many of the likeliest in its place."""

    def prompts(self) -> dict[str, str | list[int]]:
        """Returns the prompts by the names of their fields."""
        given = self.prompt
        if isinstance(given, str):
            return {"prompt": given}
        several = [one for one in given if not isinstance(one, int)]
        if several:
            return {f"prompt[{index}]": one for index, one in enumerate(several)}
        return {"prompt": [token for token in given if isinstance(token, int)]}

    def num_prompts(self) -> int:
        """See `GenerationBody.num_prompts`."""
        return len(self.prompts())

    def num_candidates(self) -> int:
        """See `GenerationBody.num_candidates`."""
        return self.best_of or self.n or 1

    def num_logprobs(self) -> int | None:
        """See `GenerationBody.num_logprobs`."""
        return self.logprobs

    def echoes_prompt(self) -> bool:
        """See `GenerationBody.echoes_prompt`."""
        return bool(self.echo)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        num_answers = self.n or 1
        if self.best_of is not None and self.best_of < num_answers:
            raise _wrong("best_of", "best_of: must not be less than n")
        if self.best_of is not None and self.best_of > num_answers and self.stream:
            raise _wrong("best_of", "best_of: must be n when stream is true")
        if self.max_tokens == 0 and not self.echo:
            raise _wrong("max_tokens", "max_tokens: 0 is only allowed when echo is true")
        return self


def _wrong(param: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_value", "{message}", {"message": message, "param": param})
