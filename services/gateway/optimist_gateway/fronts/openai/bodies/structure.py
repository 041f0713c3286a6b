"""The form of an answer's text, in the body of a request."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from optimist_gateway.core.content import (
    ChoiceContent,
    Content,
    JsonContent,
    LarkContent,
    RegexContent,
)
from optimist_gateway.fronts.openai.bodies.base import Body, Text, exactly_one
from optimist_gateway.fronts.openai.bodies.tools import FunctionName, Json

# The worker takes grammars of 64 KiB.
_MAX_GRAMMAR_CHARACTERS = 2**16
_MAX_CHOICES = 4096
ANY_OBJECT = JsonContent({"type": "object"}, is_lenient=False)

GrammarText = Annotated[Text, StringConstraints(min_length=1, max_length=_MAX_GRAMMAR_CHARACTERS)]


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaBody(Body):
    """A schema with a name."""

    name: FunctionName
    description: Text | None = None
    """Says what it is for; the model does not see it."""
    json_schema: Json | None = Field(None, alias="schema")
    strict: bool | None = None
    """False passes over keywords that no grammar can follow; else they are rejected."""


class JsonSchemaFormat(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaBody


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Discriminator("type")]


class StructuredOutputs(Body):
    """Extension: one form of the text; a JSON schema, a regular expression, texts, or a grammar."""

    model_config = ConfigDict(json_schema_extra=exactly_one(("json", "regex", "choice", "grammar")))

    json_schema: Json | None = Field(None, alias="json")
    regex: Annotated[GrammarText, Field(json_schema_extra={"format": "regex"})] | None = None
    """Matches the whole text; neither look-around nor back-references."""
    choice: list[GrammarText] | None = Field(
        None, fail_fast=True, min_length=1, max_length=_MAX_CHOICES
    )
    grammar: Annotated[GrammarText, Field(json_schema_extra={"format": "lark"})] | None = None
    """In llguidance's Lark dialect."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        forms = (self.json_schema, self.regex, self.choice, self.grammar)
        if sum(form is not None for form in forms) != 1:
            raise ValueError("must have exactly one of json, regex, choice and grammar")
        return self

    def content(self) -> Content:
        """Returns the form."""
        if self.json_schema is not None:
            return JsonContent(self.json_schema, is_lenient=False)
        if self.regex is not None:
            return RegexContent(self.regex)
        if self.choice is not None:
            return ChoiceContent(self.choice)
        return LarkContent(self.grammar or "")

    @property
    def field(self) -> str:
        """Name of the field that has the form."""
        forms = {"json": self.json_schema, "regex": self.regex, "choice": self.choice}
        given = (name for name, form in forms.items() if form is not None)
        return f"structured_outputs.{next(given, 'grammar')}"


def require_no_grammar_with_tools(
    outputs: StructuredOutputs, tools: Sequence[Body] | None, choice: object
) -> None:
    """Raises PydanticCustomError for a grammar of the client's beside calls."""
    if outputs.grammar is not None and tools and choice != "none":
        raise PydanticCustomError(
            "invalid_value",
            "structured_outputs.grammar is only allowed without tools",
            {"param": "structured_outputs.grammar"},
        )


def format_content(form: ResponseFormat | None) -> Content | None:
    """Returns what a response format asks for, None for any text."""
    if isinstance(form, JsonSchemaFormat):
        schema = form.json_schema
        if schema.json_schema is not None:
            return JsonContent(schema.json_schema, is_lenient=schema.strict is False)
    return None if form is None or isinstance(form, TextFormat) else ANY_OBJECT
