"""From the predictions of a request to their tokens."""

from collections.abc import Iterable

from optimist_gateway.core.answer.spans import SentPrediction, joined_spans
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.request import Request
from optimist_gateway.text.tokenizer import Tokenizer

# All predictions of a request together are at most this many times as long as the longest sequence.
MAX_LENGTHS = 4
# The scheduler rejects more, whatever the model.
MAX_TOKENS = 262_144


async def predicted_tokens(
    request: Request, tokenizer: Tokenizer, model: ModelDescription, max_bytes: int
) -> list[SentPrediction]:
    """Returns the tokens of each prediction, the most likely first, without empty ones.

    Each is cut at the length of the model's longest sequence.

    Args:
        request: The request.
        tokenizer: The model's.
        model: Its vocabulary and longest sequence.
        max_bytes: How long all predictions are together at most, in bytes of UTF-8 text.

    Raises:
        FieldError: A prediction is too long, or has tokens that the model does not have.
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
        # What is cut here is after the cut in tokens.
        shown = normalise_line_endings(prediction)[: longest * tokenizer.longest_token]
        if request.include_provenance:
            token_ids, spans = await tokenizer.encode_spans(shown, add_special_tokens=False)
            spans = joined_spans(spans[:longest])
            encoded.append(SentPrediction(index, token_ids[:longest], spans))
        else:
            token_ids = await tokenizer.encode(shown, add_special_tokens=False)
            encoded.append(SentPrediction(index, token_ids[:longest]))
    counts = (len(one.token_ids) for one in encoded)
    _require_at_most(counts, min(MAX_LENGTHS * model.max_model_len, MAX_TOKENS), "tokens")
    return [one for one in encoded if one.token_ids]


def normalise_line_endings(text: str) -> str:
    """Returns the text with CR LF and CR replaced by LF, which is what models write."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


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
