"""The output of a response of `/v1/responses`: its items, and the events that build them up."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from optimist_gateway.api.openai.answer_parts import Json
from optimist_gateway.api.openai.chat import new_call_id
from optimist_gateway.api.openai.responses.tools import INPUT, Tool
from optimist_gateway.core.json_text import parse_json

Event = dict[str, Any]
ItemStatus = Literal["completed", "incomplete"]
_CALLS = {
    "function": ("function_call", "fc", "arguments"),
    "custom": ("custom_tool_call", "ctc", "input"),
}
"""Of each type of tool: the type of a call, the beginning of its id, and what it is given as."""


class ResponseOutput:
    """Puts thoughts, text and tool calls together to items, one open at a time.

    Text makes messages, and each tool call is an item of its own; what begins one ends the one
    before. Events are those of OpenAI's API without their sequence numbers.
    """

    def __init__(self, response_id: str, tools: Mapping[str, Tool]) -> None:
        """Starts before the first item; `tools` are by the names that the model calls."""
        self.items: list[dict[str, Any]] = []
        self._tools = tools
        self._arguments = ""
        """Of the open call."""
        self._suffix = response_id.removeprefix("resp_")
        self._is_open = False

    @property
    def has_open_message(self) -> bool:
        """Whether more text would go on a message."""
        return self._has_open("message")

    def add_text(self, text: str, logprobs: Sequence[Json] = ()) -> list[Event]:
        """Adds text of the answer, with the log-probabilities of its tokens if they are wanted."""
        events = [] if self.has_open_message else self._open_message()
        self._part["logprobs"] += logprobs
        return events + self._add_to_part(text, logprobs=list(logprobs))

    def add_reasoning(self, text: str) -> list[Event]:
        """Adds text of what the model thinks."""
        events: list[Event] = []
        if not self._has_open("reasoning"):
            part = {"type": "reasoning_text", "text": ""}
            events = self._open_part(part, type="reasoning", id=self._new_id("rs"), summary=[])
        return events + self._add_to_part(text)

    def add_call(self, name: str | None, arguments: str) -> list[Event]:
        """Begins a call of a function with a name, or adds to the arguments of the open one."""
        events: list[Event] = []
        if name is not None:
            tool = self._tools[name]
            kind, prefix, field = _CALLS[tool.body.type]
            call = {"call_id": new_call_id(), "name": tool.body.name, field: ""}
            call |= {"namespace": tool.namespace} if tool.namespace else {}
            events = self._open(type=kind, id=self._new_id(prefix), **call)
            self._arguments = ""
        self._arguments += arguments
        # The input of a custom tool is a text within the arguments: it comes as a whole.
        if arguments and self._item["type"] == "function_call":
            events.append(self._call_event("function_call_arguments.delta", delta=arguments))
        return events

    def finish(self, status: ItemStatus) -> list[Event]:
        """Ends the output; an answer that says nothing is an empty message."""
        events = [] if self.items else self._open_message()
        return events + self.close(status)

    def close(self, status: ItemStatus = "completed") -> list[Event]:
        """Ends the open item, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self._item
        item["status"] = status
        if "content" in item:
            part = dict(self._part)
            said = {name: part[name] for name in ("text", "logprobs") if name in part}
            events = [
                self._part_event(f"response.{part['type']}.done", **said),
                self._part_event("response.content_part.done", part=part),
            ]
        elif item["type"] == "function_call":
            item["arguments"] = self._arguments
            done = {"name": item["name"], "arguments": self._arguments}
            events = [self._call_event("function_call_arguments.done", **done)]
        else:
            item["input"] = text = _input(self._arguments)
            kind = "custom_tool_call_input"
            events = [self._call_event(f"{kind}.delta", delta=text)] if text else []
            events.append(self._call_event(f"{kind}.done", input=text))
        return [*events, self._event("response.output_item.done", item=item)]

    @property
    def _item(self) -> dict[str, Any]:
        return self.items[-1]

    @property
    def _part(self) -> dict[str, Any]:
        """The only part of a message, or of thoughts."""
        part: dict[str, Any] = self._item["content"][0]
        return part

    def _has_open(self, kind: str) -> bool:
        return self._is_open and bool(self._item["type"] == kind)

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{self._suffix}_{len(self.items)}"

    def _open_message(self) -> list[Event]:
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        return self._open_part(part, type="message", id=self._new_id("msg"), role="assistant")

    def _open_part(self, part: dict[str, Any], **fields: Any) -> list[Event]:
        """Begins an item with one part."""
        events = self._open(**fields, content=[])
        self._item["content"].append(part)
        return [*events, self._part_event("response.content_part.added", part=_copy(part))]

    def _open(self, **fields: Any) -> list[Event]:
        """Begins an item, and ends the one before."""
        events = self.close()
        self.items.append({**fields, "status": "in_progress"})
        self._is_open = True
        # The item changes while it is open.
        return [*events, self._event("response.output_item.added", item=_copy(self._item))]

    def _add_to_part(self, text: str, **fields: Any) -> list[Event]:
        part = self._part
        part["text"] += text
        return [self._part_event(f"response.{part['type']}.delta", delta=text, **fields)]

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, **fields}

    def _call_event(self, kind: str, **fields: Any) -> Event:
        return self._event(f"response.{kind}", item_id=self._item["id"], **fields)

    def _part_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._item["id"], content_index=0, **fields)


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy whose lists do not grow with those of the original."""
    return {key: list(one) if isinstance(one, list) else one for key, one in value.items()}


def _input(arguments: str) -> str:
    """Returns the text in the arguments for a custom tool, which may break off anywhere."""
    try:
        given = parse_json(arguments or "{}", may_break_off=True)
    except ValueError:
        given = None
    # A model that no grammar holds may leave out what is around the text.
    return str(given.get(INPUT, "")) if isinstance(given, dict) else arguments
