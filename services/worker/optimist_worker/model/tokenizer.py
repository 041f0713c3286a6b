"""Whether what drafts for a model has its tokenizer."""

import logging

from tokenizers import Tokenizer

from optimist_common.errors import SetupError
from optimist_common.model_files.directory import check_tokenizer
from optimist_common.model_files.tokenizer import has_tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

_FLAG = "--drafter-model"


def check_same_tokenizer(target: str, draft: str) -> None:
    """Makes sure that token ids mean the same to both models.

    The embeddings may have rows beyond the tokenizer's last id, and different numbers of them. Two
    models without a tokenizer, such as those with dummy weights, cannot be compared and pass.

    Args:
        target: Directory or hub name of the model that is served.
        draft: Directory or hub name of the model that drafts for it.

    Raises:
        SetupError: They differ, one model has none, or one is damaged.
    """
    check_tokenizer(draft, _FLAG)
    of_target, of_draft = _read(target), _read(draft)
    if of_target is None and of_draft is None:
        logger.warning("neither %s nor %s has a tokenizer to compare", target, draft)
        return
    if of_target is None or of_draft is None:
        lacking, other = (target, draft) if of_target is None else (draft, target)
        raise SetupError(
            f"{_FLAG}: {lacking} has no tokenizer and {other} has one, so their tokens "
            "cannot be compared; copy the one that belongs to it"
        )
    difference = _difference(of_target, of_draft)
    if difference is not None:
        raise SetupError(
            f"{_FLAG}: {draft} has another tokenizer than {target}: {difference}; "
            "choose a draft model of the same family"
        )


def _read(name: str) -> Tokenizer | None:
    return load_tokenizer(name, _FLAG).backend_tokenizer if has_tokenizer(name) else None


def _difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """Returns the first difference in meaning of an id, or None."""
    first = {token_id: token for token, token_id in target.get_vocab().items()}
    second = {token_id: token for token, token_id in draft.get_vocab().items()}
    for token_id in sorted(first.keys() | second.keys()):
        one, other = first.get(token_id), second.get(token_id)
        if one != other:
            return f"token {token_id} is {_shown(other)} and not {_shown(one)}"
    special, other_special = _special(target), _special(draft)
    for token_id in sorted(special ^ other_special):
        only = "target" if token_id in special else "draft model"
        return f"token {token_id} ({first[token_id]!r}) is special only for the {only}"
    return None


def _special(tokenizer: Tokenizer) -> set[int]:
    added = tokenizer.get_added_tokens_decoder()
    return {token_id for token_id, token in added.items() if token.special}


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)
