"""From the prompts and the predictions of a request to their tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from optimist_gateway.core.answer.spans import (
    Prompt,
    PromptSpans,
    SentPrediction,
    SentText,
    find_contents,
)
from optimist_gateway.core.answer.thinking import ThinkingFormat, ThinkingReader, begin_thinking
from optimist_gateway.core.error import FieldError, Path
from optimist_gateway.core.request import MAX_PREDICTIONS, Conversation, Request, TextOrTokens
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.security.beside import LONG, beside
from optimist_gateway.text.chat_template import (
    TemplateMessage,
    template_messages,
    template_tool,
    with_tools,
)
from optimist_gateway.text.line_ends import LineEnds, line_ends, sent_spans, with_lf, with_line_ends
from optimist_gateway.text.tokenizer import Encoding, Tokenizer

_MESSAGE_SIZE = 64
"""To turn a message into another form takes as long as to write so many characters."""


# All predictions of a request together are at most this many times as long as the longest sequence.
MAX_LENGTHS = 4
# The scheduler rejects more, whatever the model.
MAX_TOKENS = 262_144
MAX_SENT_TOKENS = 16 * MAX_TOKENS
"""Of predictions, those of each choice of a request counted."""


@dataclass(frozen=True)
class RequestEncoder:
    """Encodes the texts of one request for a model."""

    request: Request
    tokenizer: Tokenizer
    model: ModelDescription

    async def prompts(self) -> list[Prompt]:
        """Returns the prompts.

        Raises FieldError if one is empty or too long, has unknown tokens, or its messages make no
        prompt, and ApiError if chat templates cannot be rendered now.
        """
        return [
            await self._encode_conversation(prompt)
            if isinstance(prompt, Conversation)
            else await self._encode_prompt(prompt, ("prompts", index))
            for index, prompt in enumerate(self.request.prompts)
        ]

    async def predictions(self, max_bytes: int) -> list[SentPrediction]:
        """Returns the tokens of each prediction, the most likely first, without empty ones.

        Each is cut at the length of the model's longest sequence, texts before a token that the
        model lacks, which cannot come true. Texts get the line ends of the prompts; those with
        others than LF follow once more with LF, if there is room, as some models write LF whatever
        they read.

        Raises FieldError if they have together more than so many bytes of UTF-8 text or more tokens
        than there may be, or one has tokens that the model does not have.
        """
        request, model = self.request, self.model
        texts = [one for one in request.predictions if isinstance(one, str)]
        _require_at_most((len(text.encode()) for text in texts), max_bytes, "bytes")
        expected = await self._expected_line_ends() if texts else None
        longest = min(model.max_model_len, MAX_TOKENS)
        encoded: list[SentPrediction] = []
        others: list[tuple[int, str]] = []
        for index, prediction in enumerate(request.predictions):
            if not isinstance(prediction, str):
                model.require_known(prediction, ("predictions", index))
                encoded.append(SentPrediction(index, list(prediction[:longest])))
                continue
            text = prediction
            if expected is not None:
                adapt = partial(with_line_ends, prediction, expected)
                text = await beside(adapt, len(prediction) + len(expected))
            encoded.append(await self._encode_prediction(index, text))
            if "\r" in text:
                others.append((index, with_lf(text)))
        counts = [len(one.token_ids) for one in encoded]
        # They are sent with each choice.
        most = min(
            MAX_LENGTHS * model.max_model_len, MAX_TOKENS, MAX_SENT_TOKENS // request.num_choices
        )
        _require_at_most(counts, most, "tokens")
        encoded = [one for one in encoded if one.token_ids]
        room = most - sum(counts)
        for index, text in others[: MAX_PREDICTIONS - len(encoded)]:
            other = await self._encode_prediction(index, text)
            room -= len(other.token_ids)
            if room >= 0:
                encoded.append(other)
        return encoded

    async def after_thinking(
        self, predictions: Sequence[SentPrediction], form: ThinkingFormat
    ) -> list[SentPrediction]:
        """Returns predictions that begin with the end of thoughts.

        Then whatever follows them finds its beginning where the answer proper begins, not before.
        """
        text = form.closing + form.between
        end = (await self.tokenizer.encode(text, add_special_tokens=False)).token_ids
        num_tokens = sum(len(one.token_ids) + len(end) for one in predictions)
        is_known = self.tokenizer.num_known(end, self.model.vocab_size) == len(end)
        if num_tokens > MAX_TOKENS or not is_known:
            return list(predictions)
        return [
            replace(one, token_ids=[*end, *one.token_ids], num_added=len(end))
            for one in predictions
        ]

    async def _encode_conversation(self, conversation: Conversation) -> Prompt:
        text = await render_chat(conversation, self.tokenizer, self.model)
        encoding = await self._tokens(text, ("prompts",))
        thinking = self._thinking(text, conversation)
        found = None
        if encoding.spans is not None:
            contents = [message.content for message in conversation.messages]
            texts = await beside(partial(find_contents, text, contents), len(text))
            found = PromptSpans(len(encoding.spans), encoding.spans, texts)
        return Prompt(encoding.token_ids, spans=found, thinking=thinking)

    def _thinking(self, text: str, conversation: Conversation) -> ThinkingReader | None:
        """Returns what reads the thoughts of an answer to a prompt of this text, if it has any."""
        if self.tokenizer.thinking_format is None:
            return None
        prefill = ""
        if conversation.continue_final_message:
            content = conversation.messages[-1].content.strip()
            prefill = text[text.rfind(content) :] if content else ""
        return begin_thinking(self.tokenizer.thinking_format, text, prefill)

    async def _encode_prompt(self, prompt: TextOrTokens, path: Path) -> Prompt:
        if not isinstance(prompt, str):
            self.model.require_known(prompt, path)
        if self.request.suffix:
            return await self._encode_infilling(prompt, path)
        if isinstance(prompt, str):
            encoding = await self._tokens(prompt, path, add_special_tokens=True)
            found = None
            if encoding.spans is not None:
                sent = [SentText(None, 0, len(prompt))]
                found = PromptSpans(len(encoding.spans), encoding.spans, sent)
            encoded = Prompt(encoding.token_ids, prompt, found)
        else:
            # It is of use only to show it.
            text = await self.tokenizer.decode(prompt) if self.request.echo else ""
            encoded = Prompt(list(prompt), text)
        if not encoded.token_ids:
            raise FieldError(path, "must not be empty")
        return encoded

    async def _encode_infilling(self, prompt: TextOrTokens, path: Path) -> Prompt:
        """Returns the prompt for what stands between a prompt and the suffix of the request."""
        tokenizer, model = self.tokenizer, self.model
        infilling = tokenizer.infilling
        if infilling is None or max(infilling.marks) >= model.vocab_size:
            fault = "is not supported: this model's tokenizer has no tokens to fill in the middle"
            raise FieldError(("suffix",), fault, code="unsupported_value")
        prefix: Sequence[int]
        prefix = (await self._tokens(prompt, path)).token_ids if isinstance(prompt, str) else prompt
        require_tokenizable(len(self.request.suffix), ("suffix",), tokenizer, model)
        suffix = await tokenizer.encode_continued(self.request.suffix, model.max_model_len + 1)
        if len(suffix) > model.max_model_len:
            raise model.too_long(("suffix",), f"at least {len(suffix)} tokens in the suffix")
        self._require_known(suffix, ("suffix",))
        begins = await tokenizer.encode("", add_special_tokens=True)
        token_ids = [*begins.token_ids, *infilling.prompt(prefix, suffix)]
        self._require_known(begins.token_ids, path)
        end_ids = frozenset(one for one in infilling.end_ids if one < model.vocab_size)
        return Prompt(token_ids, end_ids=end_ids)

    async def _tokens(self, text: str, path: Path, *, add_special_tokens: bool = False) -> Encoding:
        """Returns the tokens of a prompt; raises FieldError, which has the path, for too many."""
        most = self.model.max_model_len
        require_tokenizable(len(text), path, self.tokenizer, self.model)
        encoding = await self.tokenizer.encode(
            text,
            add_special_tokens=add_special_tokens,
            with_spans=self.request.include_provenance,
            most=most,
        )
        if encoding.num_tokens > most:
            at_least = "" if encoding.is_whole else "at least "
            raise self.model.too_long(path, f"{at_least}{encoding.num_tokens} tokens in the prompt")
        self._require_known(encoding.token_ids, path)
        return encoding

    def _require_known(self, token_ids: Sequence[int], path: Path) -> None:
        """Raises FieldError, which has the path, for a text with a token that the model lacks."""
        number = self.tokenizer.num_known(token_ids, self.model.vocab_size)
        if number < len(token_ids):
            text = self.tokenizer.vocabulary[token_ids[number]][0]
            raise self.model.unknown_token(token_ids[number], path, f" ({text!r})")

    async def _expected_line_ends(self) -> LineEnds | None:
        """Returns the lines of the prompts; None if no text has other ends than LF."""
        prompts = [self.request.suffix]
        for prompt in self.request.prompts:
            if isinstance(prompt, Conversation):
                prompts += (message.content for message in prompt.messages)
            else:
                decode = self.tokenizer.decode
                prompts.append(prompt if isinstance(prompt, str) else await decode(prompt))
        sent = *prompts, *self.request.predictions
        if not any("\r" in one for one in sent if isinstance(one, str)):
            return None
        return await beside(partial(line_ends, prompts), sum(map(len, prompts)))

    async def _encode_prediction(self, index: int, text: str) -> SentPrediction:
        """Returns the tokens of a prediction, of which the client has sent a text like this one."""
        encoding = await self.tokenizer.encode(
            text,
            add_special_tokens=False,
            with_spans=self.request.include_provenance,
            most=min(self.model.max_model_len, MAX_TOKENS),
        )
        number = self.tokenizer.num_known(encoding.token_ids, self.model.vocab_size)
        spans, sent = encoding.spans, str(self.request.predictions[index])
        if spans is not None and text != sent:
            spans = await beside(partial(sent_spans, spans, text, sent), len(text))
        return SentPrediction(index, encoding.token_ids[:number], spans and spans[:number])


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


async def render_chat(
    conversation: Conversation, tokenizer: Tokenizer, model: ModelDescription
) -> str:
    """Returns the text that the model reads of a conversation, up to where the answer begins.

    Raises as `RequestEncoder.prompts` does.
    """
    messages, tools = conversation.messages, conversation.tools
    length = sum(len(message.content) for message in messages)
    require_tokenizable(length, ("prompts",), tokenizer, model)
    # The schemas are in the text too, in whatever form the template has them.
    described = sum(len(tool.description or "") for tool in tools)
    require_tokenizable(described, ("tools",), tokenizer, model)
    # Calls, thoughts, tools and further values for the template have values of their own.
    has_values = any(message.tool_calls or message.reasoning for message in messages)
    is_long = has_values or tools or conversation.template_kwargs
    size = length + described + _MESSAGE_SIZE * len(messages) + (LONG if is_long else 0)

    def shown() -> tuple[list[TemplateMessage], list[Mapping[str, Any]] | None]:
        functions = [template_tool(tool) for tool in tools]
        return with_tools(template_messages(messages), functions, tokenizer.tool_format)

    text = await tokenizer.render_messages(
        *await beside(shown, size),
        template_kwargs=conversation.template_kwargs,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
    )
    require_tokenizable(len(text), ("prompts",), tokenizer, model)
    return text


def require_tokenizable(
    num_characters: int, path: Path, tokenizer: Tokenizer, model: ModelDescription
) -> None:
    """Raises FieldError for a text that is too long for the model however it is tokenized."""
    if num_characters > model.max_model_len * tokenizer.longest_token:
        raise model.too_long(path, f"{num_characters} characters")
