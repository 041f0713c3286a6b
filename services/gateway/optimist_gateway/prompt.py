"""From the prompts of a request to their tokens."""

from collections.abc import Mapping
from typing import Any

from optimist_gateway.api.chat_body import ChatCompletionBody
from optimist_gateway.api.completion_body import CompletionBody
from optimist_gateway.api.errors import ApiError
from optimist_gateway.core.prompt import Prompt
from optimist_gateway.known_token import require_known
from optimist_gateway.scheduler_client import ModelDescription
from optimist_gateway.tokenizer import ChatTemplateBusyError, ChatTemplateError, Tokenizer


async def chat_prompt(
    body: ChatCompletionBody, tokenizer: Tokenizer, model: ModelDescription
) -> list[Prompt]:
    """Returns the one prompt; raises ApiError if the messages do not make one."""
    messages = [message.message() for message in body.messages]
    tools = body.told_tools()
    length = sum(len(message.content) for message in messages)
    require_tokenizable(length, "messages", tokenizer, model)
    require_tokenizable(sum(_length(tool) for tool in tools), "tools", tokenizer, model)
    try:
        return [Prompt(await tokenizer.encode_messages(messages, tools))]
    except ChatTemplateError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_value") from None
    except ChatTemplateBusyError as error:
        raise ApiError(503, str(error), code="overloaded") from None


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
