"""Tools in the body of a chat: what the model may call, and which of it."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from optimist_gateway.core.content import Function, ToolUse
from optimist_gateway.fronts.openai.bodies.base import Body, Text
from optimist_gateway.structure.schema import MAX_VALUES, SchemaError, check_json

MAX_TOOLS = 128
# What is written back, as POST /v1/responses does with schemas, has integers of 64 bits.
MAX_INTEGER = 2**63 - 1
# Without `parameters`, a function has none.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    try:
        check_json(value, MAX_INTEGER)
    except SchemaError as error:
        raise ValueError(f"{error.path}: {error.message}".removeprefix(": ")) from None
    return value


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError("must describe an object")
    return schema


FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Json = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""A JSON object of bounded size and depth."""


class FunctionBody(Body):
    """A function that the model may call."""

    name: FunctionName
    description: Text | None = None
    parameters: Annotated[Json, AfterValidator(_of_an_object)] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Refuses parameters that calls cannot be held to wholly."""

    def schema_of_arguments(self) -> dict[str, Any]:
        """Returns the JSON schema of the arguments; they are an object."""
        if self.parameters is None:
            return _NO_PARAMETERS
        return {"type": "object", **self.parameters}


class ToolBody(Body):
    """A tool; only functions are known."""

    type: Literal["function"]
    function: FunctionBody

    def for_template(self) -> dict[str, Any]:
        """Returns the tool as chat templates want it."""
        function = self.function
        described = {} if function.description is None else {"description": function.description}
        parameters = function.schema_of_arguments()
        return {
            "type": "function",
            "function": {"name": function.name, **described, "parameters": parameters},
        }


class FunctionNameBody(Body):
    """Names a function."""

    name: FunctionName


class NamedTool(Body):
    """Names a tool; as a choice, forces its call."""

    type: Literal["function"]
    function: FunctionNameBody


class AllowedToolsBody(Body):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)


class AllowedToolsChoice(Body):
    """Allows only some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsBody


def _form(value: object) -> str:
    """Tells the forms of a choice apart."""
    if isinstance(value, str):
        return "mode"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "allowed" if kind == "allowed_tools" else "named"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, Tag("named")]
    | Annotated[AllowedToolsChoice, Tag("allowed")],
    Discriminator(_form),
]


def check_tools(tools: Sequence[ToolBody], choice: ToolChoice | None) -> None:
    """Makes sure that names are unique, schemas bounded, and that the choice names some of them.

    Raises:
        PydanticCustomError: They are not; its context has `param`.
    """
    names: set[str] = set()
    num_values = 0
    for index, tool in enumerate(tools):
        num_values += check_json(tool.function.parameters)
        if num_values > MAX_VALUES:
            raise _wrong("tools", f"their parameters have more than {MAX_VALUES} values in all")
        if tool.function.name in names:
            raise _wrong(f"tools[{index}].function.name", "another tool has this name")
        names.add(tool.function.name)
    for param, name in _chosen(choice):
        if name not in names:
            raise _wrong(param, f"no tool is called {name}")
    if choice is not None and choice != "none" and not names:
        raise _wrong("tool_choice", "is only allowed when tools are specified")


def tool_use(
    tools: Sequence[ToolBody], choice: ToolChoice | None, *, is_parallel: bool
) -> ToolUse | None:
    """Returns which calls an answer may have; None for none."""
    if not tools or choice == "none":
        return None
    names = {name for _, name in _chosen(choice)}
    functions = [
        Function(
            name=tool.function.name,
            parameters=tool.function.schema_of_arguments(),
            is_strict=bool(tool.function.strict),
            param=f"tools[{index}].function.parameters",
        )
        for index, tool in enumerate(tools)
        if not names or tool.function.name in names
    ]
    is_required = choice == "required" or isinstance(choice, NamedTool)
    if isinstance(choice, AllowedToolsChoice):
        is_required = choice.allowed_tools.mode == "required"
    # Who names a function wants that one call.
    return ToolUse(functions, is_required, is_parallel and not isinstance(choice, NamedTool))


def _chosen(choice: ToolChoice | None) -> list[tuple[str, str]]:
    """Returns the names in a choice, each behind where it stands."""
    if isinstance(choice, NamedTool):
        return [("tool_choice.function.name", choice.function.name)]
    if isinstance(choice, AllowedToolsChoice):
        return [
            (f"tool_choice.allowed_tools.tools[{index}].function.name", tool.function.name)
            for index, tool in enumerate(choice.allowed_tools.tools)
        ]
    return []


def _wrong(param: str, what: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_value", "{param}: {what}", {"param": param, "what": what})
