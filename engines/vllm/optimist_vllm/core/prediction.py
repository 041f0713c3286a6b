"""The expected answer that a client attaches to a request."""

from collections.abc import Mapping, Sequence

MAX_PREDICTIONS = 16
MAX_TOKENS = 262_144
"""Of all predictions of a request."""
MAX_CHARACTERS = 16 * MAX_TOKENS
"""What is longer has more tokens than that, or few that are worth following."""
_FORM = '{"type": "content", "content": TEXT}, where TEXT may be a list of text parts'


def read_prediction(field: object) -> list[str]:
    """Returns the expected texts, the likeliest first, with LF as line ends.

    Args:
        field: OpenAI's object or a text, or a list of up to `MAX_PREDICTIONS` of them.

    Raises:
        ValueError: It is something else, or too long. The message does not quote it.
    """
    fields = field if isinstance(field, list) else [field]
    if len(fields) > MAX_PREDICTIONS:
        raise ValueError(f"prediction: at most {MAX_PREDICTIONS}, not {len(fields)}")
    texts = [_read_text(each) for each in fields]
    num_characters = sum(map(len, texts))
    if num_characters > MAX_CHARACTERS:
        raise ValueError(f"prediction: at most {MAX_CHARACTERS} characters, not {num_characters}")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        # JSON can carry them, and no tokenizer takes them.
        raise ValueError("prediction: must be without halves of surrogate pairs") from None
    # Models write LF.
    return [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]


def check_num_tokens(predictions: Sequence[Sequence[int]]) -> None:
    """Raises ValueError if the predictions of a request have too many tokens."""
    num_tokens = sum(map(len, predictions))
    if num_tokens > MAX_TOKENS:
        raise ValueError(f"prediction: at most {MAX_TOKENS} tokens, not {num_tokens}")


def _read_text(field: object) -> str:
    if isinstance(field, Mapping) and field.get("type") == "content":
        field = field.get("content")
        if isinstance(field, list):
            return "".join(map(_read_part, field))
    if isinstance(field, str):
        return field
    raise ValueError(f"prediction: must be {_FORM}, or a list of such")


def _read_part(part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise ValueError('prediction: each part must be {"type": "text", "text": ...}')
