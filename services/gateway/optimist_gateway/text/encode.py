"""From the prompts and predictions of a request to their tokens."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from optimist_gateway.core.answer.spans import (
    Prompt,
    PromptSpans,
    SentPrediction,
    SentText,
    find_contents,
    joined_spans,
)
from optimist_gateway.core.answer.thinking import (
    ThinkingFormat,
    ThinkingReader,
    begin_thinking,
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
    thinking = find_thinking(text, conversation, tokenizer)
    if encoding.offsets is None:
        return Prompt(encoding.token_ids, thinking=thinking)
    offsets = encoding.offsets
    contents = [message.content for message in conversation.messages]

    def locate() -> PromptSpans:
        spans = joined_spans(offsets)
        return PromptSpans(len(spans), spans, find_contents(text, contents))

    spans = await beside(locate, len(text))
    return Prompt(encoding.token_ids, spans=spans, thinking=thinking)


def find_thinking(
    text: str, conversation: Conversation, tokenizer: Tokenizer
) -> ThinkingReader | None:
    """Returns what reads the thoughts of an answer to a prompt of this text; None: it has none."""
    if tokenizer.thinking_format is None:
        return None
    last = conversation.messages[-1:]
    content = "".join(one.content.strip() for one in last if one.role == "assistant")
    goes_on = content and text.rstrip().endswith(content)
    prefill = text[text.rindex(content) :] if goes_on else ""
    return begin_thinking(tokenizer.thinking_format, text, prefill)


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
        size=size,
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


# All predictions of a request together are at most this many times as long as the longest sequence.
MAX_LENGTHS = 4
# The scheduler rejects more, whatever the model.
MAX_TOKENS = 262_144
MAX_SENT_TOKENS = 16 * MAX_TOKENS
"""Of predictions, those of each choice of a request counted."""


async def predicted_tokens(
    request: Request, tokenizer: Tokenizer, model: ModelDescription, max_bytes: int
) -> list[SentPrediction]:
    """Returns the tokens of each prediction, the most likely first, without empty ones.

    Each is cut at the length of the model's longest sequence.

    Raises:
        FieldError: The predictions have together more than so many bytes of UTF-8 text or more
            tokens than there may be, or one has tokens that the model does not have.
    """
    texts = (one for one in request.predictions if isinstance(one, str))
    _require_at_most((len(text.encode()) for text in texts), max_bytes, "bytes")
    longest = min(model.max_model_len, MAX_TOKENS)
    encoded: list[SentPrediction] = []
    for index, prediction in enumerate(request.predictions):
        if not isinstance(prediction, str):
            model.require_known(prediction, ("predictions", index))
            encoded.append(SentPrediction(index, list(prediction[:longest])))
            continue
        # Models write LF at the end of lines.
        text = prediction.replace("\r\n", "\n").replace("\r", "\n")
        encoding = await tokenizer.encode(
            text,
            add_special_tokens=False,
            with_offsets=request.include_provenance,
            most=longest,
        )
        spans = None
        if encoding.offsets is not None:
            spans = await beside(partial(joined_spans, encoding.offsets), len(text))
        encoded.append(SentPrediction(index, encoding.token_ids, spans))
    counts = (len(one.token_ids) for one in encoded)
    # They are sent with each choice.
    most = min(
        MAX_LENGTHS * model.max_model_len, MAX_TOKENS, MAX_SENT_TOKENS // request.num_choices
    )
    _require_at_most(counts, most, "tokens")
    return [one for one in encoded if one.token_ids]


async def after_thinking(
    predictions: Sequence[SentPrediction], form: ThinkingFormat, tokenizer: Tokenizer
) -> list[SentPrediction]:
    """Returns predictions that begin with the end of thoughts.

    Then whatever follows them finds its beginning where the answer proper begins, and not before.
    """
    encoding = await tokenizer.encode(form.closing + form.between, add_special_tokens=False)
    end = encoding.token_ids
    num_tokens = sum(len(one.token_ids) + len(end) for one in predictions)
    if num_tokens > MAX_TOKENS:
        return list(predictions)
    return [
        replace(one, token_ids=[*end, *one.token_ids], num_added=len(end)) for one in predictions
    ]


def _require_at_most(sizes: Iterable[int], limit: int, unit: str) -> None:
    """Raises FieldError, which has the first prediction that goes beyond the limit."""
    total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > limit:
            raise FieldError(
                ("predictions", index),
                f"up to here the predictions have {total} {unit}; all together may have {limit}",
                code="prediction_too_long",
            )
