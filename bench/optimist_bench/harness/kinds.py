"""Kinds of structured answers: schema, prompt, an answer, and a predicted one."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from optimist_gateway.core.request import Function, JsonContent, Structure, ToolUse
from optimist_gateway.structure.grammars import grammar
from optimist_gateway.structure.tool_format import HERMES

STYLES: Mapping[str, Callable[[Any], str]] = {
    "compact": partial(json.dumps, ensure_ascii=False, separators=(",", ":")),
    "spaced": partial(json.dumps, ensure_ascii=False),
    "indented": partial(json.dumps, ensure_ascii=False, indent=2),
}
"""How JSON is written."""
Call: TypeAlias = tuple[str, dict[str, Any]]
"""Name of a function, and its arguments."""
_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


@dataclass(frozen=True)
class Kind:
    """A kind of answer; an answer is an object, or calls of functions as a list."""

    name: str
    question: str
    """The prompt without a description of tools."""
    answer: dict[str, Any] | list[Call]
    predicted: dict[str, Any] | list[Call]
    structure: Structure

    @property
    def prompt(self) -> str:
        """What the answer is to: the tools as templates describe them, and the question."""
        if (use := self.structure.tools) is None:
            return self.question
        described = "".join(
            json.dumps({"name": one.name, "parameters": one.parameters}) + "\n"
            for one in use.functions
        )
        return f"<tools>\n{described}</tools>\n{self.question}"

    def texts(self, style: str) -> tuple[str, str]:
        """Returns the answer and the predicted one as a model writes them, in one of STYLES."""
        answer, predicted = (_write(one, STYLES[style]) for one in (self.answer, self.predicted))
        return answer, predicted

    def grammar(self, special: Mapping[str, int]) -> str:
        """Returns the grammar that the gateway makes; `special` are the ids of special tokens."""
        markers = {part: special[part] for part in HERMES.parts if part in special}
        return grammar(self.structure, HERMES, markers)


def _write(answer: dict[str, Any] | list[Call], dumps: Callable[[Any], str]) -> str:
    if isinstance(answer, dict):
        return dumps(answer)
    calls = (dumps({"name": name, "arguments": arguments}) for name, arguments in answer)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def load_kinds() -> dict[str, Kind]:
    """Returns all kinds by their names."""
    text = Path(__file__).with_name("kinds.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    return {name: _read(name, row, data["tools"]) for name, row in data["kinds"].items()}


def _read(name: str, row: Mapping[str, Any], tools: Mapping[str, Any]) -> Kind:
    if "tools" in row:
        functions = list(_functions(tools[row["tools"]]))
        use = ToolUse(functions, is_required=row.get("is_required", False), is_parallel=True)
        return Kind(name, row["prompt"], row["calls"], row["predicted"], Structure(tools=use))
    answer, predicted = row["document"], row["prediction"]
    schema = {"type": "object"}
    if not row.get("any"):
        schema = derive_schema((answer, predicted), row.get("more", {}))
    content = JsonContent(schema, is_lenient=False)
    return Kind(name, row["prompt"], answer, predicted, Structure(content))


def _functions(tools: Mapping[str, Any]) -> Sequence[Function]:
    """Returns a set of tools, all arguments required and no others allowed if it is strict."""
    is_strict: bool = tools["is_strict"]
    functions = []
    for index, (name, arguments) in enumerate(tools["functions"].items()):
        properties = {one.rstrip("?"): _argument(kind) for one, kind in arguments.items()}
        required = [one for one in arguments if not one.endswith("?")]
        closed = {"additionalProperties": False} if is_strict else {}
        parameters = {"type": "object", "properties": properties, "required": required, **closed}
        functions.append(Function(name, parameters, is_strict, index))
    return functions


def _argument(kind: str | list[str]) -> dict[str, Any]:
    if kind == "array":
        return {"type": "array", "items": {"type": "string"}}
    return {"type": kind} if isinstance(kind, str) else {"type": "string", "enum": kind}


def derive_schema(values: Sequence[Any], more: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns the strict schema that values follow.

    Args:
        values: Values at one place of several documents.
        more: By path, such as `lines[].unit`: a list of all values, or further keywords.
        path: Where the values are.
    """
    present = [value for value in values if value is not None]
    kinds = {_TYPES[type(value)] for value in present}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    # Of nothing but null no more is known.
    (kind,) = kinds or {"string"}
    schema: dict[str, Any] = {"type": kind}
    if kind == "object":
        schema["properties"] = {
            name: derive_schema([one[name] for one in present], more, f"{path}.{name}".strip("."))
            for name in present[0]
        }
        schema |= {"required": list(present[0]), "additionalProperties": False}
    elif kind == "array":
        items = [item for one in present for item in one]
        schema["items"] = derive_schema(items, more, f"{path}[]")
    added = more.get(path, {})
    schema |= {"enum": added} if isinstance(added, list) else added
    if len(present) == len(values):
        return schema
    return {"anyOf": [schema, {"type": "null"}]}
