"""From the predictions of a request to their tokens."""

from optimist_gateway.core.answer.places import SentPrediction, joined_spans
from optimist_gateway.core.model_description import ModelDescription
from optimist_gateway.core.prediction import normalise_line_endings
from optimist_gateway.fronts.openai.bodies.generation import GenerationBody, PredictionBody
from optimist_gateway.fronts.openai.errors import ApiError
from optimist_gateway.text.known_token import require_known
from optimist_gateway.text.tokenizer import Tokenizer

# All predictions of a request together are at most this many times as long as the longest sequence.
MAX_LENGTHS = 4
# More the scheduler refuses, whatever the model.
MAX_TOKENS = 262_144


async def predicted_tokens(
    body: GenerationBody, tokenizer: Tokenizer, model: ModelDescription, max_bytes: int
) -> list[SentPrediction]:
    """Returns the tokens of each prediction, the most likely first, without empty ones.

    Each is cut at the length of the model's longest sequence.

    Args:
        body: The request.
        tokenizer: The model's.
        model: Its vocabulary and longest sequence.
        max_bytes: How long all predictions are together at most, in bytes of UTF-8 text.

    Raises:
        ApiError: A prediction is too long, or has tokens that the model does not have.
    """
    if body.prediction is not None and body.predicted_token_ids is not None:
        raise ApiError(
            400,
            "prediction and predicted_token_ids must not both be set",
            param="predicted_token_ids",
            code="invalid_value",
        )
    longest = min(model.max_model_len, MAX_TOKENS)
    encoded: dict[str, SentPrediction] = {}
    for index, (param, token_ids) in enumerate(_given_tokens(body).items()):
        require_known(token_ids, param, model)
        encoded[param] = SentPrediction(index, token_ids[:longest])
    texts = _given_texts(body)
    _require_at_most(
        {param: len(text.encode()) for param, text in texts.items()}, max_bytes, "bytes"
    )
    for index, (param, text) in enumerate(texts.items()):
        # What is cut here lies behind the cut in tokens.
        shown = normalise_line_endings(text)[: longest * tokenizer.longest_token]
        if body.include_provenance:
            token_ids, spans = await tokenizer.encode_spans(shown, add_special_tokens=False)
            spans = joined_spans(spans[:longest])
            encoded[param] = SentPrediction(index, token_ids[:longest], spans)
        else:
            token_ids = await tokenizer.encode_prediction(shown)
            encoded[param] = SentPrediction(index, token_ids[:longest])
    counts = {param: len(one.token_ids) for param, one in encoded.items()}
    _require_at_most(counts, min(MAX_LENGTHS * model.max_model_len, MAX_TOKENS), "tokens")
    return [one for one in encoded.values() if one.token_ids]


def _given_texts(body: GenerationBody) -> dict[str, str]:
    """Returns the expected texts by the names of their fields."""
    given = body.prediction
    if given is None:
        return {}
    if isinstance(given, PredictionBody):
        return {"prediction.content": given.text()}
    return {f"prediction[{index}].content": one.text() for index, one in enumerate(given)}


def _given_tokens(body: GenerationBody) -> dict[str, list[int]]:
    """Returns the expected tokens by the names of their fields."""
    given = body.predicted_token_ids or []
    several = [one for one in given if isinstance(one, list)]
    if several:
        return {f"predicted_token_ids[{index}]": one for index, one in enumerate(several)}
    return {"predicted_token_ids": [token for token in given if isinstance(token, int)]}


def _require_at_most(sizes: dict[str, int], limit: int, unit: str) -> None:
    """Raises ApiError, which names the first prediction that goes beyond the limit."""
    total = 0
    for param, size in sizes.items():
        total += size
        if total > limit:
            raise ApiError(
                400,
                f"{param}: up to here the predictions have {total} {unit}; all together may have "
                f"{limit}",
                param=param,
                code="prediction_too_long",
            )
