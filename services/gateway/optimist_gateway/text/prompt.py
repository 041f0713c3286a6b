"""From the prompts of a request to their tokens."""

from collections.abc import Sequence
from typing import Any

from optimist_gateway.core.answer.spans import (
    Prompt,
    PromptSpans,
    SentText,
    find_contents,
    joined_spans,
)
from optimist_gateway.core.content import Function
from optimist_gateway.core.error import FieldError, Path
from optimist_gateway.core.messages import Message
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.request import Conversation, Request, TextOrTokens
from optimist_gateway.text.tokenizer import Tokenizer


async def encode_prompts(
    request: Request, tokenizer: Tokenizer, model: ModelDescription
) -> list[Prompt]:
    """Returns the prompts.

    Raises:
        FieldError: One is empty or too long, has unknown tokens, or its messages make no prompt.
        ApiError: Chat templates cannot be rendered now.
    """
    prompts: list[Prompt] = []
    for index, prompt in enumerate(request.prompts):
        if isinstance(prompt, Conversation):
            encode = _encode_conversation(prompt, request, tokenizer, model)
        else:
            encode = _encode(prompt, ("prompts", index), request, tokenizer, model)
        prompts.append(await encode)
    return prompts


async def _encode_conversation(
    conversation: Conversation, request: Request, tokenizer: Tokenizer, model: ModelDescription
) -> Prompt:
    messages = conversation.messages
    text = await render_chat(messages, tokenizer, model, conversation.tools)
    if not request.include_provenance:
        return Prompt(await tokenizer.encode(text, add_special_tokens=False))
    token_ids, spans = await tokenizer.encode_spans(text, add_special_tokens=False)
    contents = find_contents(text, [message.content for message in messages])
    return Prompt(token_ids, spans=PromptSpans(len(token_ids), joined_spans(spans), contents))


async def render_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    model: ModelDescription,
    tools: Sequence[Function] = (),
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Returns the text that the model reads of a conversation.

    Args:
        messages: The conversation.
        tokenizer: The model's.
        model: What the model takes.
        tools: Functions that the prompt describes.
        add_generation_prompt: Whether to go up to where the answer begins.

    Raises:
        FieldError: The messages do not make a prompt, or are too long for the model.
        ApiError: Chat templates cannot be rendered now.
    """
    length = sum(len(message.content) for message in messages)
    require_tokenizable(length, ("prompts",), tokenizer, model)
    # The schemas are in the text too, in whatever form the template has them.
    length = sum(len(tool.description or "") for tool in tools)
    require_tokenizable(length, ("tools",), tokenizer, model)
    text = await tokenizer.render_messages(
        messages,
        [_template_tool(tool) for tool in tools],
        add_generation_prompt=add_generation_prompt,
    )
    require_tokenizable(len(text), ("prompts",), tokenizer, model)
    return text


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
    elif request.include_provenance:
        require_tokenizable(len(prompt), path, tokenizer, model)
        token_ids, spans = await tokenizer.encode_spans(prompt, add_special_tokens=True)
        whole = SentText(None, 0, len(prompt))
        found = PromptSpans(len(token_ids), joined_spans(spans), [whole])
        encoded = Prompt(token_ids, prompt, found)
    else:
        require_tokenizable(len(prompt), path, tokenizer, model)
        encoded = Prompt(await tokenizer.encode(prompt, add_special_tokens=True), prompt)
    if not encoded.token_ids:
        raise FieldError(path, "must not be empty")
    return encoded


def require_tokenizable(
    num_characters: int, path: Path, tokenizer: Tokenizer, model: ModelDescription
) -> None:
    """Rejects a text that is too long before time is spent on tokenizing it.

    Raises:
        FieldError: However it is tokenized, the model takes no sequence as long.
    """
    if num_characters > model.max_model_len * tokenizer.longest_token:
        raise FieldError(
            path,
            f"This model's maximum context length is {model.max_model_len} tokens. However, the "
            f"request has {num_characters} characters.",
            code="context_length_exceeded",
            is_sentence=True,
        )


def _template_tool(tool: Function) -> dict[str, Any]:
    """Returns a function as chat templates want it."""
    described = {} if tool.description is None else {"description": tool.description}
    function = {"name": tool.name, **described, "parameters": tool.parameters}
    return {"type": "function", "function": function}
