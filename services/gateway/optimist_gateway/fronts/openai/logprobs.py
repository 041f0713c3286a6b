"""Log-probabilities as OpenAI's endpoints word them.

A writer passes what the pieces of a choice have in `logprobs`, which is None unless the request
wants log-probabilities: `chat_logprobs(piece.logprobs)` for a chunk, and
`chat_logprobs(join_logprobs(pieces))` for a whole choice.
"""

from collections.abc import Sequence
from typing import Any

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.logprobs import TokenLogprob


def join_logprobs(pieces: Sequence[Piece]) -> list[TokenLogprob] | None:
    """Returns what all pieces of a choice tell of its tokens; None if they tell nothing."""
    if all(piece.logprobs is None for piece in pieces):
        return None
    return [token for piece in pieces for token in piece.logprobs or ()]


def chat_logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    """Returns the `logprobs` of a choice of a chat completion, or of one of its chunks."""
    if tokens is None:
        return None
    return {
        "content": [
            {**_chat_token(token), "top_logprobs": [_chat_token(one) for one in token.top]}
            for token in tokens
        ],
        "refusal": None,
    }


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.token_bytes)}


def completion_logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    """Returns the `logprobs` of a choice of a completion, or of one of its chunks."""
    if tokens is None:
        return None
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_by_text(token) for token in tokens],
        "text_offset": [token.text_offset for token in tokens],
    }


def _by_text(token: TokenLogprob) -> dict[str, float] | None:
    """Returns the likeliest tokens and the token itself; of equal texts the likeliest one."""
    if token.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for one in (*token.top, token):
        if one.logprob is not None:
            by_text.setdefault(one.text, one.logprob)
    return by_text
