"""POST /v1/responses, and the request that its body makes."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from optimist_gateway.core.error import ApiError, naming
from optimist_gateway.core.request import (
    Content,
    Conversation,
    JsonContent,
    Message,
    Structure,
    ToolCall,
    ToolChoice,
)
from optimist_gateway.core.request import Request as GenerationRequest
from optimist_gateway.fronts.openai.answering import Answering, admitted_route
from optimist_gateway.fronts.openai.bodies.base import content_text
from optimist_gateway.fronts.openai.bodies.chat import MAX_TOOL_CALLS
from optimist_gateway.fronts.openai.bodies.structure import ANY_OBJECT, tool_use
from optimist_gateway.fronts.openai.chat import tool_call_reader
from optimist_gateway.fronts.openai.responses.body import (
    AllowedTools,
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionChoice,
    ResponsesBody,
    SchemaFormat,
)
from optimist_gateway.fronts.openai.responses.writer import ResponseWriter
from optimist_gateway.generation.generation import Generation, Service

PATH = "/v1/responses"


def responses_router(service: Service) -> APIRouter:
    """Returns the endpoint."""
    router = APIRouter(route_class=admitted_route(service.admission))
    answering = Answering(service, PATH, "resp_")

    @router.post(PATH)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        """Answers a conversation with messages and calls of functions; keeps nothing of it."""
        wanted = response_request(body)

        def write(generation: Generation) -> ResponseWriter:
            reader = tool_call_reader(wanted, service.tokenizer.tool_format)
            return ResponseWriter(generation, body, service.model_name, reader)

        return await answering.answer(request, wanted, write)

    return router


def response_request(body: ResponsesBody) -> GenerationRequest:
    """Returns the request; raises ApiError if its fields do not fit together."""
    functions = [tool.function_at(index) for index, tool in enumerate(body.tools or ())]
    with naming(body.field_names):
        tools = tool_use(
            functions, _tool_choice(body), is_parallel=body.parallel_tool_calls is not False
        )
    content = _content(body)
    return body.as_request(
        prompts=(Conversation(_messages(body), functions if body.tool_choice != "none" else ()),),
        max_tokens=body.max_output_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
        structure=Structure(content, tools) if content or tools else None,
    )


def _messages(body: ResponsesBody) -> list[Message]:
    """Returns the conversation; calls of one answer are in its message."""
    messages: list[Message] = []
    if body.instructions is not None:
        messages.append(Message("system", body.instructions))
    if isinstance(body.input, str):
        return [*messages, Message("user", body.input)]
    calls: list[ToolCall] = []
    for index, item in enumerate(body.input):
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


def _add_calls(messages: list[Message], calls: list[ToolCall]) -> None:
    if not calls:
        return
    text = ""
    if messages and messages[-1].role == "assistant":
        text = messages.pop().content
    messages.append(Message("assistant", text, tool_calls=tuple(calls)))


def _content(body: ResponsesBody) -> Content | None:
    if body.structured_outputs is not None:
        return body.structured_outputs.content()
    form = body.form
    if isinstance(form, SchemaFormat):
        return JsonContent(form.json_schema, is_lenient=form.strict is False)
    return ANY_OBJECT if form is not None else None


def _tool_choice(body: ResponsesBody) -> ToolChoice | None:
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        return ToolChoice("required", (choice.name,), is_single=True)
    if isinstance(choice, AllowedTools):
        return ToolChoice(choice.mode, tuple(tool.name for tool in choice.tools))
    # Clients send `auto` without tools too.
    return ToolChoice(choice) if choice and (body.tools or choice != "auto") else None
