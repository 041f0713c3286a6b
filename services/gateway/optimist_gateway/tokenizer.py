"""The model's tokenizer and chat template."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from optimist_common.errors import SetupError
from optimist_gateway.core.detokenize import Detokenizer
from optimist_gateway.core.messages import Message, template_messages
from optimist_gateway.vocabulary import Vocabulary

# Longer texts are tokenized in a thread: about a millisecond of work, in which others would wait.
_INLINE_CHARACTERS = 500


class ChatTemplateError(Exception):
    """Says why the messages do not make a prompt."""


class Tokenizer:
    """Text to tokens and back, for one model."""

    def __init__(self, tokenizer: Any) -> None:
        """Wraps a fast tokenizer of transformers.

        Raises:
            SetupError: The tokenizer has no fast form.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise SetupError(
                f"--model: the tokenizer of {tokenizer.name_or_path} has no fast form; "
                "convert it to a tokenizer.json"
            )
        # A tokenizer file may carry limits that were set for training.
        backend.no_truncation()
        backend.no_padding()
        self._tokenizer = tokenizer
        self._backend = backend
        self.vocabulary = Vocabulary(backend)
        self._special_ids = frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        )
        self.longest_token = max(len(token) for token in backend.get_vocab())
        """Characters of the longest token: a text of n characters has at least n over this many."""

    async def encode_prompt(self, text: str) -> list[int]:
        """Returns the tokens of a plain prompt, with the special tokens the model begins with."""
        return await self._encode(text, add_special_tokens=True)

    async def encode_prediction(self, text: str) -> list[int]:
        """Returns the tokens of an expected answer, without special tokens."""
        return await self._encode(text, add_special_tokens=False)

    async def encode_prediction_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the tokens of an expected answer, and the characters of the text they stand for.

        Returns:
            The tokens, `[num_tokens]`, and where each begins and ends, `[num_tokens]`.
        """
        encoding = await self._encoding(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    async def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """Renders the chat template and returns the prompt's tokens.

        Raises:
            ChatTemplateError: The model has no chat template, or it refuses the messages.
        """
        if sum(len(message.content) for message in messages) > _INLINE_CHARACTERS:
            text = await asyncio.to_thread(self._render, messages)
        else:
            text = self._render(messages)
        return await self._encode(text, add_special_tokens=False)

    def detokenizer(self) -> Detokenizer:
        """Returns the state that turns the tokens of one answer into text."""
        return Detokenizer(self._decode, self._special_ids)

    def prompt_detokenizer(self) -> Detokenizer:
        """Returns the state that turns the tokens of a prompt into text, special ones included."""
        return Detokenizer(self._decode, ())

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=False))

    async def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list((await self._encoding(text, add_special_tokens=add_special_tokens)).ids)

    async def _encoding(self, text: str, *, add_special_tokens: bool) -> Any:
        if len(text) > _INLINE_CHARACTERS:
            return await asyncio.to_thread(
                self._backend.encode, text, add_special_tokens=add_special_tokens
            )
        return self._backend.encode(text, add_special_tokens=add_special_tokens)

    def _render(self, messages: Sequence[Message]) -> str:
        if self._tokenizer.chat_template is None:
            raise ChatTemplateError("this model has no chat template; use /v1/completions")
        try:
            text = self._tokenizer.apply_chat_template(
                template_messages(messages), tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ChatTemplateError(f"the chat template refuses the messages: {error}") from error
        return str(text)


def load_tokenizer(model: str) -> Tokenizer:
    """Loads the tokenizer of a model directory or hub name; runs no code of the model.

    Raises:
        SetupError: There is no such model, or it has no usable tokenizer.
    """
    path = Path(model)
    if not path.is_dir() and (path.is_absolute() or model.startswith(".") or path.exists()):
        raise SetupError(f"--model: no directory {model}; name a model directory or a hub model")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SetupError(f"--model: cannot load the tokenizer of {model}: {reason}") from None
    return Tokenizer(tokenizer)
