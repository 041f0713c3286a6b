"""What is wrong with a request that can never run."""

from optimist_worker.core.plan import Admission


def find_fault(
    admission: Admission, block_size: int, max_model_len: int, vocab_size: int
) -> str | None:
    """Returns what is wrong with a request, naming the field, or None.

    A faulty request gets a slot as well: its error is told when its first row comes.
    """
    return _fault(admission, block_size, max_model_len) or _token_fault(admission, vocab_size)


def _fault(admission: Admission, block_size: int, max_model_len: int) -> str | None:
    """Returns what is wrong with a request's lengths, naming the field, or None."""
    num_tokens, max_length = len(admission.token_ids), admission.max_length
    num_cached = len(admission.cached_blocks) * block_size
    if num_tokens == 0:
        return "token_ids must not be empty"
    if not 0 < admission.num_prompt_tokens <= num_tokens:
        return f"num_prompt_tokens must be in 1 to {num_tokens}, not {admission.num_prompt_tokens}"
    if not 0 <= max_length <= max_model_len:
        return f"max_length must be in 0 to {max_model_len}, not {max_length}"
    if num_tokens >= (max_length or max_model_len):
        return (
            f"token_ids: {num_tokens} tokens leave no room for another within "
            f"max_length ({max_length or max_model_len})"
        )
    if admission.min_length < 0:
        return f"min_length must be at least 0, not {admission.min_length}"
    if num_cached >= num_tokens:
        return (
            f"cached_blocks: {num_cached} tokens are cached, but at most {num_tokens - 1} "
            f"of {num_tokens} may be"
        )
    return None


def _token_fault(admission: Admission, vocab_size: int) -> str | None:
    lowest, highest = min(admission.token_ids), max(admission.token_ids)
    outside = lowest if lowest < 0 else highest
    if not 0 <= outside < vocab_size:
        return f"token_ids: {outside} is not in the vocabulary ({vocab_size})"
    return admission.sampling.fault(vocab_size)
