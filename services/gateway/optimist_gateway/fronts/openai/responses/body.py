"""The body of POST /v1/responses, with the items of its input, and the request that it makes."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from optimist_common.sampling import MAX_LOGPROBS
from optimist_gateway.core.error import ApiError, Path
from optimist_gateway.core.request import (
    Content,
    JsonContent,
    Message,
    Request,
    ToolCall,
    ToolChoice,
)
from optimist_gateway.fronts.openai.bodies.base import (
    INT32_MAX,
    MAX_PARTS,
    Body,
    content_text,
    invalid,
    only,
)
from optimist_gateway.fronts.openai.bodies.chat import (
    MAX_TOOL_CALLS,
    Arguments,
    CallId,
    require_bounded,
)
from optimist_gateway.fronts.openai.bodies.generation import AnswerBody, MaxTokens
from optimist_gateway.fronts.openai.bodies.structure import (
    ANY_OBJECT,
    MAX_TOOLS,
    FunctionBody,
    FunctionName,
    Schema,
)

MAX_ITEMS = 4096
LOGPROBS = "message.output_text.logprobs"
Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(Body):
    """str of a user, a system or a tool."""

    type: Literal["input_text"]
    text: str


class OutputTextPart(Body):
    """str of an earlier answer; annotations and log-probabilities are not read."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


_Parts = Annotated[
    list[Annotated[InputTextPart | OutputTextPart, Field(discriminator="type")]],
    Field(fail_fast=True, max_length=MAX_PARTS),
]
_InputParts = Annotated[list[InputTextPart], Field(fail_fast=True, max_length=MAX_PARTS)]


class InputMessage(Body):
    """A message; that of an earlier answer has the role `assistant`."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | _Parts
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(Body):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: Arguments
    id: str | None = None
    status: Status | None = None
    caller: None = None
    namespace: None = None


class FunctionCallOutputItem(Body):
    """What a call brought."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: str | _InputParts
    id: str | None = None
    status: Status | None = None
    caller: None = None
    name: str | None = None
    namespace: None = None


def _kind(item: object) -> object:
    """Returns the type of an item, which messages need not have."""
    if isinstance(item, dict):
        return item.get("type", "message")
    return getattr(item, "type", None)


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")],
    Discriminator(
        _kind,
        custom_error_type="unknown_item",
        custom_error_message=(
            "must be an item of type message, function_call or function_call_output"
        ),
    ),
]


class PlainFormat(Body):
    """str of any form, or a JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(Body):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    name: FunctionName
    json_schema: Schema = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Body):
    """What form the text of the answer has."""

    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["medium"] | None = None


class FunctionKind(Body):
    """The only kind of tool that is supported."""

    type: Literal["function"]


# Fields are checked from the last base to the first: a tool of another kind has another type.
class FunctionTool(FunctionBody, FunctionKind):
    """A function that the model may call."""


class FunctionChoice(Body):
    """The function that the model is to call."""

    type: Literal["function"]
    name: FunctionName


class AllowedTools(Body):
    """The functions that the model may call this time."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice] = Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)


ToolChoiceBody = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[
        Annotated[FunctionChoice | AllowedTools, Field(discriminator="type")], Tag("object")
    ],
    Discriminator(lambda value: "word" if isinstance(value, str) else "object"),
]


Input = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[
        list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS), Tag("items")
    ],
    Discriminator(lambda value: "items" if isinstance(value, list) else "text"),
]


class ResponsesBody(AnswerBody):
    """A request that is answered with items; nothing of it is stored."""

    input: Input
    instructions: str | None = None
    """A system message in front of the input."""
    max_output_tokens: MaxTokens = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = Field(None, fail_fast=True, max_length=MAX_TOOLS)
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, fail_fast=True, max_length=16
    )
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """How many of the likeliest tokens `include` reports for each token."""
    max_tool_calls: int | None = Field(None, ge=1, le=INT32_MAX)
    """Ignored: it counts calls of tools that run on the server."""
    metadata: dict[str, str] | None = None
    """Ignored but for being repeated, as all up to `prompt_cache_key`."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    background: Annotated[Any, only(False)] = None
    """Would need responses to be stored, as all that follow."""
    conversation: Annotated[Any, only()] = None
    previous_response_id: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None

    without_effect: ClassVar[frozenset[str]] = AnswerBody.without_effect | {"stream_options"}

    @property
    def form(self) -> PlainFormat | SchemaFormat | None:
        """The form of the text, if it has one."""
        form = self.text.format if self.text is not None else None
        return None if form is None or form.type == "text" else form

    @property
    def wants_logprobs(self) -> bool:
        """Whether the response reports how likely its tokens were."""
        return LOGPROBS in (self.include or [])

    def field_names(self) -> dict[Path, str]:
        """See `AnswerBody.field_names`."""
        names = super().field_names() | {("prompts",): "input", ("prompts", 0): "input"}
        schema = ".schema" if isinstance(self.form, SchemaFormat) else ""
        names.setdefault(("structure",), f"text.format{schema}")
        for index, name in enumerate(self._choice()[1]):
            names[("tool_choice", index)] = name
        return names

    def request(self) -> Request:
        """Returns the request; raises ApiError if its fields do not fit together."""
        return self.conversation_request(
            self._messages(),
            [tool.function_at(index) for index, tool in enumerate(self.tools or ())],
            self._choice()[0],
            self._content(),
            is_parallel=self.parallel_tool_calls is not False,
            max_tokens=self.max_output_tokens,
            num_logprobs=(self.top_logprobs or 0) if self.wants_logprobs else None,
        )

    def _messages(self) -> list[Message]:
        """Returns the conversation; calls of one answer are in its message."""
        messages: list[Message] = []
        if self.instructions is not None:
            messages.append(Message("system", self.instructions))
        if isinstance(self.input, str):
            return [*messages, Message("user", self.input)]
        calls: list[ToolCall] = []
        for index, item in enumerate(self.input):
            if isinstance(item, FunctionCallItem):
                if len(calls) == MAX_TOOL_CALLS:
                    name = f"input[{index}]"
                    fault = f"{name}: more than {MAX_TOOL_CALLS} calls follow each other"
                    raise ApiError(400, fault, param=name, code="invalid_value")
                calls.append(ToolCall(item.call_id, item.name, item.arguments))
                continue
            _add_calls(messages, calls)
            calls = []
            if isinstance(item, FunctionCallOutputItem):
                result = content_text(item.output)
                messages.append(Message("tool", result, tool_call_id=item.call_id))
            else:
                messages.append(Message(item.role, content_text(item.content)))
        _add_calls(messages, calls)
        return messages

    def _content(self) -> Content | None:
        form = self.form
        if isinstance(form, SchemaFormat):
            return JsonContent(form.json_schema, is_lenient=not form.strict)
        return ANY_OBJECT if form is not None else None

    def _choice(self) -> tuple[ToolChoice | None, list[str]]:
        """Returns which functions may be called, and where the names of these are."""
        choice = self.tool_choice
        if isinstance(choice, FunctionChoice):
            return ToolChoice("required", (choice.name,), is_single=True), ["tool_choice.name"]
        if isinstance(choice, AllowedTools):
            where = [f"tool_choice.tools[{index}].name" for index in range(len(choice.tools))]
            return ToolChoice(choice.mode, tuple(tool.name for tool in choice.tools)), where
        return ToolChoice(choice) if choice else None, []

    @model_validator(mode="after")
    def _has_bounded_calls(self) -> Self:
        items = self.input if isinstance(self.input, list) else ()
        calls = (item for item in items if isinstance(item, FunctionCallItem))
        require_bounded("input", (call.arguments for call in calls))
        return self

    @model_validator(mode="after")
    def _includes_what_it_counts(self) -> Self:
        if self.top_logprobs and not self.wants_logprobs:
            raise invalid("top_logprobs", f'top_logprobs needs include: ["{LOGPROBS}"]')
        return self

    @model_validator(mode="after")
    def _has_one_structure(self) -> Self:
        other = None if self.form is None else "text.format"
        self.require_one_structure(other, has_calls=bool(self.tools) and self.tool_choice != "none")
        return self


def _add_calls(messages: list[Message], calls: list[ToolCall]) -> None:
    if not calls:
        return
    text = ""
    if messages and messages[-1].role == "assistant":
        text = messages.pop().content
    messages.append(Message("assistant", text, tool_calls=tuple(calls)))
