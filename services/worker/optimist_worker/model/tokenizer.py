"""Whether what drafts for a model has its tokenizer."""

import logging

from optimist_common.errors import SetupError
from optimist_common.model_files.directory import check_tokenizer
from optimist_common.model_files.tokenizer import has_tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

_FLAG = "--drafter-model"


def check_same_tokenizer(target: str, draft: str) -> None:
    """Raises SetupError unless token ids mean the same to a model and to what drafts for it.

    The embeddings may have rows beyond the tokenizer's last id, and different numbers of them. Two
    models without a tokenizer, such as those with dummy weights, cannot be compared and pass.
    """
    check_tokenizer(draft, _FLAG)
    known = [name for name in (target, draft) if has_tokenizer(name)]
    if not known:
        logger.warning("neither %s nor %s has a tokenizer to compare", target, draft)
        return
    if len(known) == 1:
        lacking = draft if known == [target] else target
        raise SetupError(
            f"{_FLAG}: {lacking} has no tokenizer and {known[0]} has one, so their tokens "
            "cannot be compared; copy the one that belongs to it"
        )
    of_target, of_draft = map(_read, known)
    for token_id in sorted(of_target.keys() | of_draft.keys()):
        wanted, found = (of.get(token_id, "missing") for of in (of_target, of_draft))
        if found != wanted:
            raise SetupError(
                f"{_FLAG}: {draft} has another tokenizer than {target}: token {token_id} is "
                f"{found} and not {wanted}; choose a draft model of the same family"
            )


def _read(name: str) -> dict[int, str]:
    """Returns what each token id means."""
    tokenizer = load_tokenizer(name, _FLAG).backend_tokenizer
    tokens = {token_id: repr(token) for token, token_id in tokenizer.get_vocab().items()}
    special = (key for key, each in tokenizer.get_added_tokens_decoder().items() if each.special)
    return tokens | {token_id: f"{tokens[token_id]} (special)" for token_id in special}
