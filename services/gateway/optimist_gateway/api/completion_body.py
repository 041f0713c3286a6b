"""The body of POST /v1/completions."""

from typing import Annotated, ClassVar

from pydantic import Field

from optimist_gateway.api.body import Text
from optimist_gateway.api.requests import GenerationBody, TokenIds

MAX_PROMPTS = 1024


class CompletionBody(GenerationBody):
    """One prompt or several, each as text or as tokens."""

    default_max_tokens: ClassVar[int | None] = 16

    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text | TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    )

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
