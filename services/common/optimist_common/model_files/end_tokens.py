"""Which tokens end a text: the one place that decides, for whatever engine runs the model."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from optimist_common.model_files.config import check_generation_config, text_part
from optimist_common.model_files.json_file import read_object
from optimist_common.model_files.tokenizer import (
    explained,
    find_file,
    has_tokenizer,
    load_tokenizer,
)

logger = logging.getLogger(__name__)


def read_end_tokens(
    model: str, flag: str, vocab_size: int, default: Any = None, tokenizer: str | None = None
) -> list[int]:
    """Returns the tokens that a model's files say end a text, together.

    generation_config.json, config.json and the tokenizer are read: files often name the end of a
    turn in one of them and the end of a document in another. What the model has no token for is
    left out, with a line in the log.

    Args:
        model: Directory or hub name.
        flag: Setting that named it.
        vocab_size: Of the model's logits.
        default: One id, several or None: what the model's class says, for files that name none.
        tokenizer: Directory or hub name, if it is not the model's.

    Raises:
        SetupError: A file is damaged; the message begins with the flag.
    """
    with explained(f"{flag}: cannot read which tokens end a text of {model}"):
        named = dict.fromkeys(_named_by_files(model))
    place = tokenizer or model
    if has_tokenizer(place):
        token_id = load_tokenizer(place, flag).eos_token_id
        named |= {} if token_id is None else {token_id: None}
    named = named or dict.fromkeys(_ids(default))
    known = [token_id for token_id in named if 0 <= token_id < vocab_size]
    if len(known) < len(named):
        logger.warning(
            "%s: eos_token_id is %s, and tokens are from 0 to %d; what is not is dropped",
            *(model, list(named), vocab_size - 1),
        )
    return known


def _named_by_files(model: str) -> Iterator[int]:
    for name in ("generation_config.json", "config.json"):
        path = find_file(model, name)
        if path is None:
            continue
        content = read_object(path)
        check_generation_config(content, name)
        yield from _ids(content.get("eos_token_id"))
        part: Mapping[str, Any] = text_part(content)
        if part is not content:
            check_generation_config(part, f"{name}: text_config")
            yield from _ids(part.get("eos_token_id"))


def _ids(named: Any) -> list[int]:
    if named is None:
        return []
    return list(named) if isinstance(named, list | tuple) else [named]
