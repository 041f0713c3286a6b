"""From the predictions of a request to their tokens, with the line ends of the answer."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from optimist_gateway.core.answer.spans import SentPrediction
from optimist_gateway.core.answer.thinking import ThinkingFormat
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import MAX_PREDICTIONS, Conversation, Request
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.security.beside import beside
from optimist_gateway.text.tokenizer import Tokenizer

_LINE_END = re.compile("\r\n|\r|\n")

LineEnds = Counter[tuple[str, str]]
"""How many lines of this text end with this line end."""


def line_ends(texts: Sequence[str]) -> LineEnds:
    """Returns the lines of texts; the last line of a text, which has no end, is left out."""
    return Counter(line for text in texts for line in _lines(text))


def with_line_ends(prediction: str, prompt: LineEnds) -> str:
    """Returns a prediction with the line ends of the prompt, if its own are others.

    A model copies the line ends that it reads, and writes LF if it reads none. The lines that
    prompt and prediction have in common tell which these are, as an instruction or another file
    may have others; without such lines, all do. What most of the lines end with counts: a text in
    which a few end differently stays as it is, as in the prompt.
    """
    own, in_common, others = Counter[str](), Counter[str](), Counter[str]()
    lines = line_ends([prediction])
    texts = {text for text, _ in lines if text.strip()}
    for (_, end), count in lines.items():
        own[end] += count
    for (text, end), count in prompt.items():
        (in_common if text in texts else others)[end] += count
    expected = in_common or others or Counter("\n")
    if not own or expected[own.most_common(1)[0][0]] == max(expected.values()):
        return prediction
    return with_lf(prediction).replace("\n", expected.most_common(1)[0][0])


def with_lf(text: str) -> str:
    """Returns a text whose lines end with LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def sent_spans(spans: Sequence[tuple[int, int]], read: str, sent: str) -> list[tuple[int, int]]:
    """Returns spans of a text as spans of another that differs from it in its line ends alone."""
    ends, sent_ends = ([one.end() for one in _LINE_END.finditer(text)] for text in (read, sent))
    shifts = [0, *(there - here for here, there in zip(ends, sent_ends, strict=True))]

    def sent_position(position: int) -> int:
        return position + shifts[bisect_right(ends, position)]

    return [(sent_position(start), sent_position(end)) for start, end in spans]


def _lines(text: str) -> Iterator[tuple[str, str]]:
    start = 0
    for end in _LINE_END.finditer(text):
        yield text[start : end.start()], end[0]
        start = end.end()


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

    Each is cut at the length of the model's longest sequence, texts before a token that the model
    lacks, which cannot come true. Texts get the line ends of the prompts; those with others than LF
    follow once more with LF, if there is room, as some models write LF whatever they read.

    Raises FieldError if they have together more than so many bytes of UTF-8 text or more tokens
    than there may be, or one has tokens that the model does not have.
    """
    texts = [one for one in request.predictions if isinstance(one, str)]
    _require_at_most((len(text.encode()) for text in texts), max_bytes, "bytes")
    expected = await _expected_line_ends(request, tokenizer) if texts else None
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
        encoded.append(await _encode(index, text, request, tokenizer, model))
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
        other = await _encode(index, text, request, tokenizer, model)
        room -= len(other.token_ids)
        if room >= 0:
            encoded.append(other)
    return encoded


async def _expected_line_ends(request: Request, tokenizer: Tokenizer) -> LineEnds | None:
    """Returns the lines of the prompts; None if no text has other ends than LF."""
    prompts = [request.suffix]
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            prompts += (message.content for message in prompt.messages)
        else:
            prompts.append(prompt if isinstance(prompt, str) else await tokenizer.decode(prompt))
    if not any("\r" in one for one in (*prompts, *request.predictions) if isinstance(one, str)):
        return None
    return await beside(partial(line_ends, prompts), sum(map(len, prompts)))


async def _encode(
    index: int, text: str, request: Request, tokenizer: Tokenizer, model: ModelDescription
) -> SentPrediction:
    """Returns the tokens of a prediction, of which the client has sent a text like this one."""
    encoding = await tokenizer.encode(
        text,
        add_special_tokens=False,
        with_spans=request.include_provenance,
        most=min(model.max_model_len, MAX_TOKENS),
    )
    number = tokenizer.num_known(encoding.token_ids, model.vocab_size)
    spans, sent = encoding.spans, str(request.predictions[index])
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


async def after_thinking(
    predictions: Sequence[SentPrediction],
    form: ThinkingFormat,
    tokenizer: Tokenizer,
    model: ModelDescription,
) -> list[SentPrediction]:
    """Returns predictions that begin with the end of thoughts.

    Then whatever follows them finds its beginning where the answer proper begins, and not before.
    """
    encoding = await tokenizer.encode(form.closing + form.between, add_special_tokens=False)
    end = encoding.token_ids
    num_tokens = sum(len(one.token_ids) + len(end) for one in predictions)
    if num_tokens > MAX_TOKENS or tokenizer.num_known(end, model.vocab_size) < len(end):
        return list(predictions)
    return [
        replace(one, token_ids=[*end, *one.token_ids], num_added=len(end)) for one in predictions
    ]
