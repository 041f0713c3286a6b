"""The tools of POST /v1/responses, and the functions that the model sees of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, Tag

from optimist_gateway.api.openai.bodies.base import OTHER, Body, LeftOut, tag_of
from optimist_gateway.api.openai.bodies.structure import (
    MAX_TOOLS,
    FunctionBody,
    FunctionName,
    Schema,
)
from optimist_gateway.core.error import Path
from optimist_gateway.core.request import Function

INPUT = "input"
"""The argument of the functions that stand for custom tools."""
_TEXT = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
_TAGS: dict[str | None, str] = {
    "function": "a function",
    "custom": "a text",
    "namespace": "a group",
}


class FunctionTool(FunctionBody):
    """A function that the model may call."""

    type: Literal["function"]


class CustomTool(Body):
    """A tool that takes a text; the model sees a function, whose description has the grammar."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: Schema | None = None
    """`text`, or a `grammar` with its `syntax` and `definition`."""

    def function_at(self, index: int) -> Function:
        """Returns the function that stands for the tool; see `FunctionBody.function_at`."""
        texts = [self.description] if self.description else []
        form = self.format or {}
        if "definition" in form:
            grammar = f"The {INPUT} follows this grammar ({form.get('syntax')}):"
            texts.append(f"{grammar}\n{form['definition']}")
        description = "\n\n".join(texts) or None
        return Function(self.name, _TEXT, is_strict=True, index=index, description=description)


class OtherTool(LeftOut):
    """A tool of a kind that does not run here."""

    type: Annotated[str, Field(json_schema_extra={"not": {"enum": [*_TAGS]}})]


_Tool = (
    Annotated[FunctionTool, Tag("a function")]
    | Annotated[CustomTool, Tag("a text")]
    | Annotated[OtherTool, Tag(OTHER)]
)


class Namespace(Body):
    """A group of tools."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    tools: list[Annotated[_Tool, tag_of(_TAGS)]] = Field(fail_fast=True, max_length=MAX_TOOLS)


ToolBody = Annotated[_Tool | Annotated[Namespace, Tag("a group")], tag_of(_TAGS)]


@dataclass(frozen=True)
class Tool:
    """A tool that the model may use."""

    path: Path
    """Where it is in the request."""
    namespace: str | None
    body: FunctionTool | CustomTool
    function: Function
    """What the model sees of it."""


def shown_name(name: str, namespace: str | None) -> str:
    """Returns what the model calls a tool."""
    return f"{namespace}__{name}" if namespace else name


def tools_of(bodies: Sequence[ToolBody]) -> list[Tool]:
    """Returns the tools of a request that the model may use."""
    tools: list[Tool] = []
    for path, namespace, body in _flat(bodies):
        if not isinstance(body, OtherTool):
            function = body.function_at(len(tools))
            shown = replace(function, name=shown_name(body.name, namespace))
            tools.append(Tool(path, namespace, body, shown))
    return tools


def _flat(bodies: Sequence[ToolBody]) -> Iterator[tuple[Path, str | None, _Tool]]:
    """Yields where each tool is, its namespace, and its body."""
    for index, body in enumerate(bodies):
        if isinstance(body, Namespace):
            for below, member in enumerate(body.tools):
                yield ("tools", index, "tools", below), body.name, member
        else:
            yield ("tools", index), None, body
