"""The texts of a model's tokens."""

import os
from pathlib import Path

from optimist_aligner.text.vocabulary import Vocabulary
from optimist_common.errors import SetupError


def load_vocabulary(model: str) -> Vocabulary:
    """Returns the text of every token, and the tokenizer as what splits texts.

    Args:
        model: Directory or hub name; only the tokenizer is read, and no code from there is run.

    Raises:
        SetupError: There is no tokenizer, or none of its tokens ends a line.
    """
    looks_like_path = model.startswith((".", "~", os.sep)) or model.count("/") != 1
    if looks_like_path and not Path(model).expanduser().is_dir():
        raise SetupError(f"--model: no directory {model}; give one that holds a tokenizer")

    from transformers import AutoTokenizer

    path = Path(model).expanduser()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(path) if path.is_dir() else model, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise SetupError(f"--model: cannot load a tokenizer from {model}: {reason}") from None
    size = max(tokenizer.get_vocab().values(), default=-1) + 1

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    vocabulary = Vocabulary(
        tokenizer.batch_decode(
            [[token_id] for token_id in range(size)],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        ),
        encode,
    )
    if not vocabulary.newline_token_ids:
        raise SetupError(f"--model: no token of {model} ends a line; is it a text model?")
    return vocabulary
