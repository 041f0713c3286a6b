"""The body of POST /v1/responses."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.fronts.openai.bodies.base import Body, Text
from optimist_gateway.fronts.openai.bodies.generation import AnswerBody, CacheOptions, Metadata
from optimist_gateway.fronts.openai.bodies.structure import StructuredOutputs
from optimist_gateway.fronts.openai.bodies.tools import MAX_TOOLS, FunctionName, Json
from optimist_gateway.fronts.openai.bodies.unsupported import KnownParameters, drop_unsupported
from optimist_gateway.fronts.openai.responses.input import InputItem

MAX_ITEMS = 4096
LOGPROBS = "message.output_text.logprobs"
_INT32_MAX = 2**31 - 1

_UNSUPPORTED = KnownParameters(
    refused={
        "access_programs": (),
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
        "reasoning": ({}, {"effort": None}, {"effort": "none"}),
        "truncation": ("disabled",),
    },
    by_value=frozenset({"background", "reasoning", "truncation"}),
)
"""Among them what would need responses to be stored."""


class PlainFormat(Body):
    """Text of any form, or a JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(Body):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    name: FunctionName
    json_schema: Json = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class TextOptions(Body):
    """What form the text of the answer has."""

    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["medium"] | None = None


class FunctionTool(Body):
    """A function that the model may call; the only kind of tool that is supported."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None


class FunctionChoice(Body):
    """The function that the model is to call."""

    type: Literal["function"]
    name: FunctionName


class AllowedTools(Body):
    """The functions that the model may call this time."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice] = Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)


def _choice_form(value: object) -> str:
    return "word" if isinstance(value, str) else "object"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[
        Annotated[FunctionChoice | AllowedTools, Field(discriminator="type")], Tag("object")
    ],
    Discriminator(_choice_form),
]


def _input_form(value: object) -> str:
    return "items" if isinstance(value, list) else "text"


Input = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[
        list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS), Tag("items")
    ],
    Discriminator(_input_form),
]


class ResponseStreamOptions(Body):
    """Options of a streamed answer."""

    include_obfuscation: bool | None = None
    """Ignored."""


class ResponsesBody(AnswerBody):
    """A request that is answered with items; nothing of it is stored."""

    model: str
    input: Input
    instructions: Text | None = None
    """A system message in front of the input."""
    max_output_tokens: int | None = Field(None, ge=1, le=_INT32_MAX)
    stream: bool | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = Field(None, fail_fast=True, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, fail_fast=True, max_length=16
    )
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """How many of the likeliest tokens `include` tells of for each token."""
    structured_outputs: StructuredOutputs | None = None
    """Extension: the form of the answer's text, as at the other endpoints."""
    metadata: Metadata | None = None
    """Comes back with the response."""
    max_tool_calls: int | None = Field(None, ge=1, le=_INT32_MAX)
    """Ignored, as all that follow: it counts calls of tools that run on the server."""
    store: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    user: Text | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the response tells how likely its tokens were."""
        return LOGPROBS in (self.include or [])

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, body: object) -> object:
        return drop_unsupported(body, _UNSUPPORTED) if isinstance(body, dict) else body

    @model_validator(mode="after")
    def _includes_what_it_counts(self) -> Self:
        if self.top_logprobs and not self.wants_logprobs:
            raise PydanticCustomError(
                "invalid_value",
                'top_logprobs needs include: ["message.output_text.logprobs"]',
                {"param": "top_logprobs"},
            )
        return self
