"""The model's tokenizer and chat template."""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from optimist_common.model_files.directory import check_tokenizer
from optimist_common.model_files.tokenizer import explained, load_templates
from optimist_common.model_files.tokenizer import load_tokenizer as load_transformers_tokenizer
from optimist_common.vocabulary import Vocabulary
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.spans import joined_spans
from optimist_gateway.core.answer.thinking import thinking_format
from optimist_gateway.core.error import ApiError, FieldError
from optimist_gateway.security.beside import (
    ChildError,
    ChildProcess,
    ChildTimeoutError,
    ChildUnavailableError,
    beside,
)
from optimist_gateway.structure.tool_format import AUTO, tool_format
from optimist_gateway.text.chat_template import RENDERER, check_template, render
from optimist_gateway.text.infilling import find_infilling

logger = logging.getLogger(__name__)

_GREETING = [{"role": "user", "content": "Hello"}]
_RESTART_SECONDS = 2.0


# Longer texts are tokenized in a thread: about a millisecond of work, in which others would wait.
_INLINE_CHARACTERS = 500
_TYPICAL_CHARACTERS = 2
"""Of a token, at first, not to tokenize megabytes of which a few are of use."""
_MARGIN = 1024
"""So many tokens further on, it makes no difference any more what follows."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The tokens of a text."""

    token_ids: list[int]
    spans: list[tuple[int, int]] | None
    """The characters of the text that each is, as `joined_spans`; None if nobody asked."""
    num_tokens: int
    """How many there are in all, or at least, if not all of the text was read."""
    is_whole: bool
    """Whether all of it was."""


class Tokenizer:
    """Text to tokens and back, for one model."""

    def __init__(
        self,
        tokenizer: Any,
        templates: Mapping[str, str],
        tool_call_format: str = AUTO,
        template_seconds: float | None = None,
    ) -> None:
        """Wraps a fast tokenizer of transformers.

        Args:
            tokenizer: The tokenizer.
            templates: Its chat templates; `default`, and perhaps `tool_use`.
            tool_call_format: How the model writes tool calls; see `tool_format`.
            template_seconds: The longest that the template may take for one prompt, in a process of
                its own; None for as long as it likes, in this process.
        """
        backend = tokenizer.backend_tokenizer
        # A tokenizer file may carry limits that were set for training.
        backend.no_truncation()
        backend.no_padding()
        self._templates = templates
        self._backend = backend
        self._process: ChildProcess | None = None
        if template_seconds is not None:
            self._process = ChildProcess(RENDERER, "", template_seconds, "the chat template")
        self.unready_reason: str | None = None
        """Why chats cannot be tokenized yet, or None if they can."""
        if self._process is not None and templates:
            self.unready_reason = "the process of the chat template starts"
        self.vocabulary = Vocabulary(backend)
        added = backend.get_added_tokens_decoder().items()
        self._special_ids = frozenset(token_id for token_id, token in added if token.special)
        self.infilling = find_infilling(backend.token_to_id)
        """How the model is asked to fill in the middle; None if it cannot be."""
        self.markers: Mapping[str, int] = {
            token.content: token_id
            for token_id, token in added
            if token.special or re.fullmatch("<.*>", token.content)
        }
        """The ids of tokens that are no text in grammars, by their texts: for llguidance, tokens
        that were added and are named like tags are special ones."""
        self._special_tokens = {
            name: str(token) for name, token in tokenizer.special_tokens_map.items()
        }
        template = self._template(with_tools=True)
        self.tool_format = tool_format(tool_call_format, template)
        """How the model writes tool calls."""
        self.thinking_format = thinking_format(template, [token.content for _, token in added])
        """What is around what the model thinks before it answers; None if nothing is known."""
        vocabulary = backend.get_vocab()
        self.longest_token = max(map(len, vocabulary))
        """Characters of the longest token: a text of n characters has at least n over this many."""
        self._last_id = max(vocabulary.values())

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        with_spans: bool = False,
        most: int | None = None,
    ) -> "Encoding":
        """Returns the tokens of a text; special tokens that it names are read as such.

        Args:
            text: The text.
            add_special_tokens: Whether to add those with which the model's prompts begin.
            with_spans: Whether it matters which characters they are.
            most: How many are of use; what of a much longer text comes after them is left out.
        """
        read = partial(self._read, text, add_special_tokens, with_spans, most)
        # The library lets other threads run meanwhile.
        is_long = len(text) > _INLINE_CHARACTERS
        encoding, is_whole = await asyncio.to_thread(read) if is_long else read()
        spans = await beside(partial(_spans, encoding, most), len(text)) if with_spans else None
        return Encoding(encoding.ids[:most], spans, len(encoding), is_whole)

    def _read(
        self, text: str, special: bool, with_spans: bool, most: int | None
    ) -> tuple[Any, bool]:
        """Returns the library's encoding, and whether it is of all of the text."""
        size = len(text) if most is None else _TYPICAL_CHARACTERS * (most + _MARGIN)
        while True:
            encoding = self._read_all(text[:size], special, with_spans)
            if size >= len(text) or (most is not None and len(encoding) > most + _MARGIN):
                return encoding, size >= len(text)
            size *= 4

    def _read_all(self, text: str, special: bool, with_spans: bool) -> Any:
        if len(text) <= _INLINE_CHARACTERS:
            return self._backend.encode(text, add_special_tokens=special)
        # `encode` would keep the interpreter for all of the text.
        encode = self._backend.encode_batch if with_spans else self._backend.encode_batch_fast
        return encode([text], add_special_tokens=special)[0]

    async def encode_continued(self, text: str, most: int) -> list[int]:
        """Returns the first tokens of a text that stands within another, at most so many.

        SentencePiece begins a text with a space, which does not belong there.
        """
        # No token has both this and a part of the text.
        mark = "" if self.vocabulary.is_byte_level else "\N{WHITE SMILING FACE}"
        encoding = await self.encode(
            mark + text, add_special_tokens=False, with_spans=bool(mark), most=most
        )
        start = sum(start < len(mark) for start, _ in encoding.spans or ())
        return encoding.token_ids[start:]

    def num_known(self, token_ids: Sequence[int], vocab_size: int) -> int:
        """Returns how many tokens precede the first that a model of so many lacks."""
        if self._last_id < vocab_size:
            return len(token_ids)
        unknown = (index for index, token in enumerate(token_ids) if token >= vocab_size)
        return next(unknown, len(token_ids))

    async def render_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """Returns the text that the chat template makes of what `with_tools` returns.

        The options are those of `render`. Raises FieldError if the model has no chat template, or
        if it rejects the messages, and ApiError if it cannot be rendered now.
        """
        template = self._template(with_tools=tools is not None)
        if not template:
            named = f" but for {', '.join(self._templates)}" if self._templates else ""
            raise _no_prompt(f"this model has no chat template{named}; use /v1/completions")
        value = {
            "template": template,
            "messages": messages,
            "tools": tools,
            "special_tokens": self._special_tokens,
            **options,
        }
        try:
            return await self._render(value)
        except ChildUnavailableError as error:
            raise ApiError(503, str(error), code="overloaded") from error
        except ChildTimeoutError as error:
            raise _no_prompt(str(error)) from error
        except ChildError as error:
            reason = str(error).partition("\n")[0]
            raise _no_prompt(f"the chat template refuses the messages: {reason}") from error

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens, special ones included."""
        if len(token_ids) > _INLINE_CHARACTERS:
            return await asyncio.to_thread(self._decode, token_ids)
        return self._decode(token_ids)

    async def start(self) -> None:
        """Starts the process of the chat template; tries again until it runs."""
        while self.unready_reason is not None and self._process is not None:
            try:
                await self.render_messages(_GREETING)
            except FieldError as error:
                # Some take no such conversation; what else is wrong shows with each chat.
                logger.warning("a conversation of one message: %s", error.message)
            except ApiError as error:
                self.unready_reason = error.message
                logger.error("chats are not answered: %s", error.message)
                await asyncio.sleep(_RESTART_SECONDS)
                continue
            self.unready_reason = None

    async def stop(self) -> None:
        """Ends the process of the chat template, if it runs."""
        if self._process is not None:
            await self._process.stop()

    def detokenizer(
        self, shown: Collection[str] | None = (), before: Sequence[int] = ()
    ) -> Detokenizer:
        """Returns what turns the tokens of one answer into text.

        Of special tokens, it shows those of these texts only; None for all. The answer follows the
        tokens `before`: what begins a word has its space, and what continues one has none.
        """
        skipped = self._special_ids.difference(map(self.markers.get, shown or ()))
        vocabulary = self.vocabulary if self.vocabulary.is_byte_level else None
        return Detokenizer(self._decode, () if shown is None else skipped, vocabulary, before)

    def _decode(self, token_ids: Sequence[int]) -> str:
        if self.vocabulary.is_byte_level:
            token_bytes = b"".join([self.vocabulary[token][1] for token in token_ids])
            return token_bytes.decode(errors="replace")
        # It lets other threads run, unlike `decode`.
        if len(token_ids) > _INLINE_CHARACTERS:
            return str(self._backend.decode_batch([token_ids], skip_special_tokens=False)[0])
        return str(self._backend.decode(token_ids, skip_special_tokens=False))

    async def _render(self, value: dict[str, Any]) -> str:
        if self._process is None:
            try:
                return await asyncio.to_thread(lambda: render(**value))
            except Exception as error:
                # Whatever a template does wrong is the template's or the request's fault.
                raise ChildError(str(error) or type(error).__name__) from error
        return await self._process.ask(value)

    def _template(self, *, with_tools: bool) -> str:
        """Returns the source of the template; some models have one of their own for tools."""
        template = self._templates.get("default", "")
        return self._templates.get("tool_use", template) if with_tools else template


def _spans(encoding: Any, most: int | None) -> list[tuple[int, int]]:
    # All offsets at once would keep the interpreter longer than all else here.
    places = map(encoding.token_to_chars, range(len(encoding))[:most])
    return joined_spans([place or (0, 0) for place in places])


def _no_prompt(reason: str) -> FieldError:
    return FieldError(("prompts",), reason, is_sentence=True)


def load_tokenizer(
    model: str,
    tool_call_format: str = AUTO,
    template_seconds: float | None = None,
    flag: str = "--model",
) -> Tokenizer:
    """Loads the tokenizer of a model directory or hub name; runs no code of the model.

    Raises SetupError, which has the flag that named the model, if there is no such model, or if it
    has no usable tokenizer or chat template.
    """
    check_tokenizer(model, flag)
    tokenizer = load_transformers_tokenizer(model, flag)
    templates = load_templates(model, flag, tokenizer)
    with explained(f"{flag}: {model}: the chat template cannot be read"):
        for source in templates.values():
            check_template(source)
    return Tokenizer(tokenizer, templates, tool_call_format, template_seconds)
