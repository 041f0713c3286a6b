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


class OutputCall(TypedDict):
    """A call in a response."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ResponseOutput:
    """Puts text and tool calls together to items, one open at a time.

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
        return self._is_open and bool(self._item["type"] == "message")

    def add_text(self, text: str, logprobs: Sequence[TokenLogprobAnswer] = ()) -> list[Event]:
        """Adds text of the answer, with the log-probabilities of its tokens if they are wanted."""
        events = []
        if not self.has_open_message:
            events += self.close() + self._open_message()
        part = self._item["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        return [
            *events,
            self._part_event("response.output_text.delta", delta=text, logprobs=list(logprobs)),
        ]

    def add_call(self, name: str | None, arguments: str) -> list[Event]:
        """Begins a call of a function with a name, or adds to the arguments of the open one."""
        events = []
        if name is not None:
            events += [*self.close(), self._open_call(name)]
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
        if item["type"] == "message":
            part = item["content"][0]
            events = [
                self._part_event(
                    "response.output_text.done", text=part["text"], logprobs=part["logprobs"]
                ),
                self._part_event("response.content_part.done", part=dict(part)),
            ]
        else:
            kind = "response.function_call_arguments.done"
            names = {"item_id": item["id"], "name": item["name"]}
            events = [self._event(kind, arguments=item["arguments"], **names)]
        return [*events, self._event("response.output_item.done", item=item)]

    @property
    def _item(self) -> dict[str, Any]:
        return self.items[-1]

    def _open_message(self) -> list[Event]:
        item: dict[str, Any] = {
            "type": "message",
            "id": f"msg_{self._suffix}_{len(self.items)}",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        events = [self._add(item)]
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        item["content"].append(part)
        events.append(self._part_event("response.content_part.added", part=_copy(part)))
        return events

    def _open_call(self, name: str) -> Event:
        item = {
            "type": "function_call",
            "id": f"fc_{self._suffix}_{len(self.items)}",
            "status": "in_progress",
            "call_id": new_call_id(),
            "name": name,
            "arguments": "",
        }
        return self._add(item)

    def _add(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        self._is_open = True
        # The item changes while it is open.
        return self._event("response.output_item.added", item=_copy(item))

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, **fields}

    def _part_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._item["id"], content_index=0, **fields)


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy whose lists do not grow with those of the original."""
    return {key: list(one) if isinstance(one, list) else one for key, one in value.items()}
