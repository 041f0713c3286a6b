"""From the prompts of a request to their tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from optimist_gateway.api.chat_body import ChatCompletionBody
from optimist_gateway.api.completion_body import CompletionBody
from optimist_gateway.api.errors import ApiError
from optimist_gateway.core.messages import Message
from optimist_gateway.core.prompt import Prompt
from optimist_gateway.scheduler.description import ModelDescription
from optimist_gateway.text.known_token import require_known
from optimist_gateway.text.tokenizer import ChatTemplateBusyError, ChatTemplateError, Tokenizer


async def chat_prompt(
    body: ChatCompletionBody, tokenizer: Tokenizer, model: ModelDescription
) -> list[Prompt]:
    """Returns the one prompt; raises ApiError if the messages do not make one."""
    messages = [message.message() for message in body.messages]
    return [Prompt(await encode_chat(messages, tokenizer, model, body.told_tools()))]


async def encode_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    model: ModelDescription,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool = True,
    add_special_tokens: bool = False,
) -> list[int]:
    """Returns the tokens of a conversation.

    Args:
        messages: The conversation.
        tokenizer: The model's.
        model: What the model takes.
        tools: What the model is told that it may call, in OpenAI's shape.
        add_generation_prompt: Whether to go up to where the answer begins.
        add_special_tokens: Whether to add what plain prompts begin with; templates have it.

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
    return await tokenizer.encode(text, add_special_tokens=add_special_tokens)


async def completion_prompts(
    body: CompletionBody, tokenizer: Tokenizer, model: ModelDescription
) -> list[Prompt]:
    """Returns the prompts; raises ApiError if one is empty or has unknown tokens."""
    return [
        await _completion_prompt(prompt, param, tokenizer, model)
        for param, prompt in body.prompts().items()
    ]


async def _completion_prompt(
    prompt: str | list[int], param: str, tokenizer: Tokenizer, model: ModelDescription
) -> Prompt:
    if isinstance(prompt, str):
        require_tokenizable(len(prompt), param, tokenizer, model)
        encoded = Prompt(await tokenizer.encode_prompt(prompt), prompt)
    else:
        require_known(prompt, param, model)
        encoded = Prompt(prompt)
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
