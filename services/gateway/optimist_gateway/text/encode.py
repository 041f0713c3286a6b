"""From the prompts of a request to their tokens."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from optimist_gateway.core.answer.spans import (
    Prompt,
    PromptSpans,
    SentText,
    find_contents,
    joined_spans,
)
from optimist_gateway.core.error import FieldError, Path
from optimist_gateway.core.request import Conversation, Function, Message, Request, TextOrTokens
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.security.beside import LONG, beside
from optimist_gateway.structure.tool_format import MISTRAL, MISTRAL_ARGS, ToolFormat
from optimist_gateway.text.tokenizer import Encoding, Tokenizer

# Templates know `system`; `developer` is the newer name of the same role in the API.
_TEMPLATE_ROLES = {"developer": "system"}
_MISTRAL_ID_CHARACTERS = 9
_INSTRUCTION = """You may call functions. To call some, answer with nothing but
{"tool_calls": [{"name": "...", "arguments": {...}}]}
where the arguments follow the function's JSON schema. Their results come in the next message. \
The functions are:
"""

TemplateMessage = dict[str, Any]
_MESSAGE_SIZE = 64
"""To turn a message into another form takes as long as to write so many characters."""


def template_messages(messages: Sequence[Message]) -> list[TemplateMessage]:
    """Returns the messages as dictionaries with the roles that templates know.

    Calls have OpenAI's shape, but their arguments are objects, as templates expect. Results name
    the function that was called, if it is known.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_template_message(message, names) for message in messages]


def _template_message(message: Message, names: Mapping[str, str]) -> TemplateMessage:
    role = _TEMPLATE_ROLES.get(message.role, message.role)
    shown: TemplateMessage = {"role": role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
        name = message.name or names.get(message.tool_call_id)
        if name is not None:
            shown["name"] = name
    return shown


def with_tools(
    messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]], form: ToolFormat
) -> tuple[list[TemplateMessage], list[Mapping[str, Any]] | None]:
    """Returns what a chat template is given for messages and for tools, all in OpenAI's shape.

    The arguments of calls are objects. The tools are None if there are none, or if the messages
    describe them.
    """
    if form.in_template:
        if form in (MISTRAL, MISTRAL_ARGS):
            messages = [_with_short_ids(message) for message in messages]
        return list(messages), list(tools) or None
    shown = _without_calls(messages)
    return (_with_instruction(shown, tools) if tools else shown), None


def _with_short_ids(message: TemplateMessage) -> TemplateMessage:
    """Returns a message with ids of nine letters and digits; such templates take no others."""
    shown = dict(message)
    if "tool_call_id" in message:
        shown["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        calls = message["tool_calls"]
        shown["tool_calls"] = [call | {"id": _short_id(call["id"])} for call in calls]
    return shown


def _short_id(call_id: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]", "", call_id)
    return plain[-_MISTRAL_ID_CHARACTERS:].rjust(_MISTRAL_ID_CHARACTERS, "0")


def _with_instruction(
    messages: list[TemplateMessage], tools: Sequence[Mapping[str, Any]]
) -> list[TemplateMessage]:
    functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    instruction = _INSTRUCTION + "\n".join(functions)
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        content = f"{first['content']}\n\n{instruction}"
        return [first | {"content": content}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]


def _without_calls(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Returns messages with calls and results as text; results that follow each other are one."""
    shown: list[TemplateMessage] = []
    previous = ""
    for message in messages:
        if message["role"] == "tool":
            result = {"name": message.get("name"), "result": message["content"]}
            text = json.dumps(result, ensure_ascii=False)
            if previous == "tool":
                shown[-1]["content"] += f"\n{text}"
            else:
                shown.append({"role": "user", "content": text})
        elif "tool_calls" in message:
            shown.append({"role": message["role"], "content": _with_calls(message)})
        else:
            shown.append(message)
        previous = message["role"]
    return shown


def _with_calls(message: TemplateMessage) -> str:
    calls = [call["function"] for call in message["tool_calls"]]
    text = json.dumps({"tool_calls": calls}, ensure_ascii=False)
    return "\n".join(part for part in (message["content"], text) if part)


async def encode_prompts(
    request: Request, tokenizer: Tokenizer, model: ModelDescription
) -> list[Prompt]:
    """Returns the prompts.

    Raises:
        FieldError: One is empty or too long, has unknown tokens, or its messages make no prompt.
        ApiError: Chat templates cannot be rendered now.
    """
    return [
        await _encode_conversation(prompt, request, tokenizer, model)
        if isinstance(prompt, Conversation)
        else await _encode(prompt, ("prompts", index), request, tokenizer, model)
        for index, prompt in enumerate(request.prompts)
    ]


async def _encode_conversation(
    conversation: Conversation, request: Request, tokenizer: Tokenizer, model: ModelDescription
) -> Prompt:
    text = await render_chat(conversation.messages, tokenizer, model, conversation.tools)
    encoding = await _prompt_tokens(text, ("prompts",), request, tokenizer, model)
    if encoding.offsets is None:
        return Prompt(encoding.token_ids)
    offsets = encoding.offsets
    contents = [message.content for message in conversation.messages]

    def locate() -> PromptSpans:
        spans = joined_spans(offsets)
        return PromptSpans(len(spans), spans, find_contents(text, contents))

    return Prompt(encoding.token_ids, spans=await beside(locate, len(text)))


async def _prompt_tokens(
    text: str,
    path: Path,
    request: Request,
    tokenizer: Tokenizer,
    model: ModelDescription,
    *,
    add_special_tokens: bool = False,
) -> Encoding:
    """Returns the tokens of a prompt; raises FieldError, which has the path, for too many."""
    require_tokenizable(len(text), path, tokenizer, model)
    encoding = await tokenizer.encode(
        text,
        add_special_tokens=add_special_tokens,
        with_offsets=request.include_provenance,
        most=model.max_model_len,
    )
    if encoding.num_tokens > model.max_model_len:
        at_least = "" if encoding.is_whole else "at least "
        raise model.too_long(path, f"{at_least}{encoding.num_tokens} tokens in the prompt")
    return encoding


async def render_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    model: ModelDescription,
    tools: Sequence[Function] = (),
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Returns the text that the model reads of a conversation, up to where the answer begins.

    Raises:
        FieldError: The messages do not make a prompt, or are too long for the model.
        ApiError: Chat templates cannot be rendered now.
    """
    length = sum(len(message.content) for message in messages)
    require_tokenizable(length, ("prompts",), tokenizer, model)
    # The schemas are in the text too, in whatever form the template has them.
    described = sum(len(tool.description or "") for tool in tools)
    require_tokenizable(described, ("tools",), tokenizer, model)
    # Calls and tools have values of their own.
    has_values = tools or any(message.tool_calls for message in messages)
    size = length + described + _MESSAGE_SIZE * len(messages) + (LONG if has_values else 0)
    text = await tokenizer.render_messages(
        *await beside(partial(_for_template, messages, tools, tokenizer.tool_format), size),
        add_generation_prompt=add_generation_prompt,
    )
    require_tokenizable(len(text), ("prompts",), tokenizer, model)
    return text


def _for_template(
    messages: Sequence[Message], tools: Sequence[Function], form: ToolFormat
) -> tuple[list[TemplateMessage], list[Mapping[str, Any]] | None]:
    return with_tools(template_messages(messages), [_template_tool(one) for one in tools], form)


async def _encode(
    prompt: TextOrTokens,
    path: Path,
    request: Request,
    tokenizer: Tokenizer,
    model: ModelDescription,
) -> Prompt:
    if request.suffix:
        return await _encode_infilling(prompt, path, request, tokenizer, model)
    if not isinstance(prompt, str):
        model.require_known(prompt, path)
        encoded = Prompt(list(prompt))
    else:
        encoding = await _prompt_tokens(
            prompt, path, request, tokenizer, model, add_special_tokens=True
        )
        found = None
        if encoding.offsets is not None:
            spans = await beside(partial(joined_spans, encoding.offsets), len(prompt))
            found = PromptSpans(len(spans), spans, [SentText(None, 0, len(prompt))])
        encoded = Prompt(encoding.token_ids, prompt, found)
    if not encoded.token_ids:
        raise FieldError(path, "must not be empty")
    return encoded


async def _encode_infilling(
    prompt: TextOrTokens,
    path: Path,
    request: Request,
    tokenizer: Tokenizer,
    model: ModelDescription,
) -> Prompt:
    """Returns the prompt for what stands between a prompt and the suffix of the request."""
    if (infilling := tokenizer.infilling) is None:
        fault = "is not supported: this model's tokenizer has no tokens to fill in the middle"
        raise FieldError(("suffix",), fault, code="unsupported_value")
    if isinstance(prompt, str):
        prefix = (await _prompt_tokens(prompt, path, request, tokenizer, model)).token_ids
    else:
        model.require_known(prompt, path)
        prefix = list(prompt)
    require_tokenizable(len(request.suffix), ("suffix",), tokenizer, model)
    suffix = await tokenizer.encode_continued(request.suffix, model.max_model_len)
    if suffix.num_tokens > model.max_model_len:
        raise model.too_long(("suffix",), f"at least {suffix.num_tokens} tokens in the suffix")
    begins = await tokenizer.encode("", add_special_tokens=True)
    token_ids = [*begins.token_ids, *infilling.prompt(prefix, suffix.token_ids)]
    return Prompt(token_ids, end_ids=infilling.end_ids)


def require_tokenizable(
    num_characters: int, path: Path, tokenizer: Tokenizer, model: ModelDescription
) -> None:
    """Raises FieldError for a text that is too long for the model however it is tokenized."""
    if num_characters > model.max_model_len * tokenizer.longest_token:
        raise model.too_long(path, f"{num_characters} characters")


def _template_tool(tool: Function) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    function = {"name": tool.name, **described, "parameters": tool.parameters}
    return {"type": "function", "function": function}
