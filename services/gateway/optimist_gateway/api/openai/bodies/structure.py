"""The form of an answer in the body of a request: of its text, and what the model may call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    model_validator,
)

from optimist_gateway.api.openai.bodies.base import OTHER, Body, LeftOut, tag_of
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.json_text import HEAVY, is_heavier, parse_json
from optimist_gateway.core.request import (
    ChoiceContent,
    Content,
    Function,
    JsonContent,
    LarkContent,
    RegexContent,
    ToolUse,
)
from optimist_gateway.structure.json_schema import MAX_VALUES, check_json

MAX_TOOLS = 512
MAX_TEXT_WEIGHT = 2 * HEAVY * MAX_VALUES
"""Of JSON in a text: what passes `check_json` is no heavier, if all values are texts with names."""
# What is written back, as POST /v1/responses does with schemas, has integers of 64 bits.
_INTEGERS = range(-(2**63), 2**64)
# Without `parameters`, a function has none.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    check_json(value, _INTEGERS)
    return value


def _from_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    if is_heavier(value.encode(), MAX_TEXT_WEIGHT):
        raise ValueError(f"has more than {MAX_VALUES} values")
    try:
        return parse_json(value)
    except (ValueError, RecursionError):
        raise ValueError("must be JSON") from None


def _of_an_object(schema: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    # What is wrong itself is not in the data.
    if info.data.get("strict") and schema.get("type", "object") != "object":
        raise ValueError(f"must describe an object, as {info.data.get('name')} is strict")
    return schema


FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
Schema = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""A JSON object of bounded size and depth."""
Json = Annotated[Schema, BeforeValidator(_from_text)]
"""The same, or the text of it."""


class FunctionBody(Body):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    strict: bool | None = None
    """Rejects parameters that calls cannot be held to wholly."""
    parameters: Annotated[Schema, AfterValidator(_of_an_object)] | None = None
    """JSON schema of the arguments."""

    def function_at(self, index: int) -> Function:
        """Returns the function, which is at this index of the tools."""
        # They are an object, whatever is said.
        kind = {"type": "object"}
        return Function(
            name=self.name,
            parameters=_NO_PARAMETERS if self.parameters is None else kind | self.parameters | kind,
            is_strict=bool(self.strict),
            index=index,
            description=self.description,
        )


class ChatTool(Body):
    """A function as chats have it."""

    type: Literal["function"] = "function"
    function: FunctionBody


class OtherChatTool(LeftOut):
    """A tool that is no function."""

    type: Annotated[str, Field(json_schema_extra={"not": {"enum": ["function"]}})]


ToolBody = Annotated[
    Annotated[ChatTool, Tag("a function")] | Annotated[OtherChatTool, Tag(OTHER)],
    tag_of({None: "a function", "function": "a function"}),
]


class NamedTool(Body):
    """Names a tool, as in chats or as in responses; as a choice, forces its call."""

    type: Literal["function", "custom"] = "function"
    name: str = Field(
        validation_alias=AliasChoices(
            AliasPath("function", "name"), AliasPath("custom", "name"), "name"
        )
    )


class AllowedTools(Body):
    """Allows only some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(
        validation_alias=AliasChoices("mode", AliasPath("allowed_tools", "mode"))
    )
    tools: list[NamedTool] = Field(
        validation_alias=AliasChoices("tools", AliasPath("allowed_tools", "tools")),
        fail_fast=True,
        min_length=1,
        max_length=MAX_TOOLS,
    )


class ToolMode(Body):
    """One of the words as an object."""

    type: Literal["none", "auto", "required"]


ToolChoiceBody = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[
        Annotated[NamedTool | AllowedTools | ToolMode, Field(discriminator="type")], Tag("object")
    ],
    Discriminator(lambda value: "word" if isinstance(value, str) else "object"),
]


def tool_use(
    functions: Sequence[Function],
    choice: ToolChoiceBody | None,
    shown: Mapping[str, str],
    *,
    is_parallel: bool,
) -> ToolUse | None:
    """Returns which calls an answer may have; None for none.

    `shown` has functions' names that the choice calls otherwise. Raises FieldError if two functions
    have one name, or the choice names an unknown function.
    """
    mode: Literal["none", "auto", "required"] = "auto"
    chosen: list[str] = []
    if isinstance(choice, NamedTool):
        mode, chosen, is_parallel = "required", [choice.name], False
    elif isinstance(choice, AllowedTools):
        mode, chosen = choice.mode, [tool.name for tool in choice.tools]
    elif choice is not None:
        mode = choice.type if isinstance(choice, ToolMode) else choice
    names: set[str] = set()
    for function in functions:
        if function.name in names:
            problem = f"another tool is called {function.name}, too"
            raise FieldError(("tools", function.index, "name"), problem)
        names.add(function.name)
    chosen = [shown.get(name, name) for name in chosen]
    for name in chosen:
        if name not in names:
            raise FieldError(("tool_choice",), f"no tool is called {name}")
    if mode == "required" and not names:
        raise FieldError(("tool_choice",), "is only allowed when tools are specified")
    if not functions or mode == "none":
        return None
    used = [function for function in functions if not chosen or function.name in chosen]
    return ToolUse(used, is_required=mode == "required", is_parallel=is_parallel)


_MAX_GRAMMAR_CHARACTERS = 2**16
_MAX_CHOICES = 4096
ANY_OBJECT = JsonContent({"type": "object"}, is_lenient=False)

GrammarText = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_GRAMMAR_CHARACTERS)]
Choices = Annotated[list[GrammarText], Field(fail_fast=True, min_length=1, max_length=_MAX_CHOICES)]
FORMS: Mapping[str, Callable[[Any], Content]] = {
    "json": lambda schema: JsonContent(schema, is_lenient=False),
    "regex": RegexContent,
    "choice": ChoiceContent,
    "grammar": LarkContent,
}
"""What extensions call the forms of a text."""


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object, or as an extension one that a schema describes."""

    type: Literal["json_object"]
    json_schema: Schema | None = Field(None, alias="schema")


class JsonSchemaBody(Body):
    """A schema with a name."""

    name: FunctionName | None = None
    description: str | None = None
    """Says what it is for; the model does not see it."""
    json_schema: Schema | None = Field(None, alias="schema")
    strict: bool | None = None
    """Rejects keywords that no grammar can follow; else they are passed over."""


class JsonSchemaFormat(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaBody

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, value: Any) -> Any:
        # llama.cpp and others have it one level higher.
        if isinstance(value, dict) and "schema" in value and "json_schema" not in value:
            schema = {name: one for name, one in value.items() if name != "type"}
            value = {"type": value["type"], "json_schema": schema}
        return value


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Discriminator("type")]


class StructuredOutputs(Body):
    """Extension: one form of the text; a JSON schema, a regular expression, texts, or a grammar."""

    json_schema: Json | None = Field(None, alias="json")
    regex: Annotated[GrammarText, Field(json_schema_extra={"format": "regex"})] | None = None
    """Matches the whole text; neither look-around nor back-references."""
    choice: Choices | None = None
    grammar: Annotated[GrammarText, Field(json_schema_extra={"format": "lark"})] | None = None
    """In llguidance's Lark dialect."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if len(list(self.forms())) != 1:
            raise ValueError("must have exactly one of json, regex, choice and grammar")
        return self

    def forms(self) -> Iterator[tuple[str, Content]]:
        """Yields the form, with the name of its field."""
        given = (self.json_schema, self.regex, self.choice, self.grammar)
        for (name, content), form in zip(FORMS.items(), given, strict=True):
            if form is not None:
                yield name, content(form)


def format_content(form: ResponseFormat | JsonSchemaBody | None) -> Content | None:
    """Returns what a response format asks for, None for any text."""
    if form is None or isinstance(form, TextFormat):
        return None
    described = form.json_schema if isinstance(form, JsonSchemaFormat) else form
    if described.json_schema is None:
        return ANY_OBJECT
    is_strict = isinstance(described, JsonSchemaBody) and bool(described.strict)
    return JsonContent(described.json_schema, is_lenient=not is_strict)
