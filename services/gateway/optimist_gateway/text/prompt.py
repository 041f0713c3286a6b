"""From the prompts of a request to their tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from optimist_gateway.core.answer.places import (
    PromptPlaces,
    SentText,
    find_contents,
    joined_spans,
)
from optimist_gateway.core.messages import Message
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.prompt import Prompt
from optimist_gateway.fronts.openai.bodies.chat import ChatCompletionBody
from optimist_gateway.fronts.openai.bodies.completion import CompletionBody
from optimist_gateway.fronts.openai.errors import ApiError
from optimist_gateway.text.known_token import require_known
from optimist_gateway.text.tokenizer import ChatTemplateBusyError, ChatTemplateError, Tokenizer


async def chat_prompt(
    body: ChatCompletionBody, tokenizer: Tokenizer, model: ModelDescription
) -> list[Prompt]:
    """Returns the one prompt; raises ApiError if the messages do not make one."""
    messages = [message.message() for message in body.messages]
    text = await render_chat(messages, tokenizer, model, body.told_tools())
    if not body.include_provenance:
        return [Prompt(await tokenizer.encode(text, add_special_tokens=False))]
    token_ids, spans = await tokenizer.encode_spans(text, add_special_tokens=False)
    contents = find_contents(text, [message.content for message in messages])
    places = PromptPlaces(len(token_ids), joined_spans(spans), contents)
    return [Prompt(token_ids, places=places)]


async def render_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    model: ModelDescription,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Returns the text that the model reads of a conversation.

    Args:
        messages: The conversation.
        tokenizer: The model's.
        model: What the model takes.
        tools: What the model is told that it may call, in OpenAI's shape.
        add_generation_prompt: Whether to go up to where the answer begins.

    Raises:
        ApiError: The messages do not make a prompt, or are too long for the model.
    """
    length = sum(len(message.content) for message in messages)
    require_tokenizable(length, "messages", tokenizer, model)
    require_tokenizable(sum(_length(tool) for tool in tools), "tools", tokenizer, model)
    try:
        text = await tokenizer.render_messages(
            messages, tools, add_generation_prompt=add_generation_prompt
        )
    except ChatTemplateError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from None
    except ChatTemplateBusyError as error:
        raise ApiError(503, str(error), code="overloaded") from None
    # Calls and the schemas of tools count as well, in whatever form the template tells them.
    require_tokenizable(len(text), "messages", tokenizer, model)
    return text


async def completion_prompts(
    body: CompletionBody, tokenizer: Tokenizer, model: ModelDescription
) -> list[Prompt]:
    """Returns the prompts; raises ApiError if one is empty or has unknown tokens."""
    return [
        await _completion_prompt(body, prompt, param, tokenizer, model)
        for param, prompt in body.prompts().items()
    ]


async def _completion_prompt(
    body: CompletionBody,
    prompt: str | list[int],
    param: str,
    tokenizer: Tokenizer,
    model: ModelDescription,
) -> Prompt:
    if not isinstance(prompt, str):
        require_known(prompt, param, model)
        encoded = Prompt(prompt)
    elif body.include_provenance:
        require_tokenizable(len(prompt), param, tokenizer, model)
        token_ids, spans = await tokenizer.encode_spans(prompt, add_special_tokens=True)
        whole = SentText(None, 0, len(prompt))
        places = PromptPlaces(len(token_ids), joined_spans(spans), [whole])
        encoded = Prompt(token_ids, prompt, places)
    else:
        require_tokenizable(len(prompt), param, tokenizer, model)
        encoded = Prompt(await tokenizer.encode_prompt(prompt), prompt)
    if not encoded.token_ids:
        raise ApiError(400, f"{param}: must not be empty", param=param, code="invalid_value")
    return encoded


def require_tokenizable(
    num_characters: int, param: str, tokenizer: Tokenizer, model: ModelDescription
) -> None:
    """Refuses a text that is too long before time is spent on tokenizing it.

    Raises:
        ApiError: However it is tokenized, the model takes no sequence as long.
    """
    if num_characters > model.max_model_len * tokenizer.longest_token:
        raise ApiError(
            400,
            f"This model's maximum context length is {model.max_model_len} tokens. However, the "
            f"request has {num_characters} characters.",
            param=param,
            code="context_length_exceeded",
        )


def _length(tool: Mapping[str, Any]) -> int:
    """Returns the characters of a tool's description; the schema is told too, in some way."""
    return len(tool["function"].get("description", ""))
