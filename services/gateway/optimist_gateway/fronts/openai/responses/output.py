"""The output of a response of `/v1/responses`: its items, and the events that build them up."""

from collections.abc import Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from optimist_gateway.fronts.openai.answer_parts import TokenLogprobAnswer
from optimist_gateway.fronts.openai.chat import new_call_id

Event = dict[str, Any]
ItemStatus = Literal["completed", "incomplete"]


class OutputText(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    annotations: list[Any]
    logprobs: list[TokenLogprobAnswer]
    text: str


class OutputMessage(TypedDict):
    """A message in a response."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    """Text of what the model thinks."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    """What the model thinks before it answers."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(TypedDict):
    """A call in a response."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ResponseOutput:
    """Puts thoughts, text and tool calls together to items, one open at a time.

    Text makes messages, and each tool call is an item of its own; what begins one ends the one
    before. Events are those of OpenAI's API without their sequence numbers.
    """

    def __init__(self, response_id: str) -> None:
        self.items: list[dict[str, Any]] = []
        self._suffix = response_id.removeprefix("resp_")
        self._is_open = False

    @property
    def has_open_message(self) -> bool:
        """Whether more text would go on a message."""
        return self._has_open("message")

    def add_text(self, text: str, logprobs: Sequence[TokenLogprobAnswer] = ()) -> list[Event]:
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
            call = {"call_id": new_call_id(), "name": name, "arguments": ""}
            events = self._open(type="function_call", id=self._new_id("fc"), **call)
        if arguments:
            self._item["arguments"] += arguments
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, item_id=self._item["id"], delta=arguments))
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
        else:
            kind = "response.function_call_arguments.done"
            names = {"item_id": item["id"], "name": item["name"]}
            events = [self._event(kind, arguments=item["arguments"], **names)]
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

    def _part_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._item["id"], content_index=0, **fields)


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy whose lists do not grow with those of the original."""
    return {key: list(one) if isinstance(one, list) else one for key, one in value.items()}
