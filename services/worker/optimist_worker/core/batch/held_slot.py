"""What the host knows of a slot; all that moves with its steps is in the SlotTable."""

from dataclasses import dataclass

from optimist_worker.core.plan import Admission


def find_fault(
    admission: Admission, block_size: int, max_model_len: int, vocab_size: int
) -> str | None:
    """Returns what is wrong with a request, naming the field, or None.

    A faulty request gets a slot as well: its error is reported when its first row comes.
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


@dataclass(slots=True)
class HeldSlot:
    """One admitted request."""

    request_id: str
    num_tokens: int
    """As they were admitted, prompt and output."""
    num_blocks: int
    """Blocks that it holds."""
    error: str | None
    """Why this request can never run, or None."""
    has_window: bool = False
    """Whether its window may have something to draft, as far as is known."""
    has_tree: bool = False
    """Whether its window is no chain."""
    window_sequence: int = 0
    """Number of the plan that brought the window."""
    num_unseen: int = 0
    """At least as many tokens as the drafter has not seen, as far as is known."""
    has_grammar: bool = False
    wants_logprobs: bool = False
    """Whether any log-probabilities of its tokens are wanted."""
    num_logprobs: int | None = None
    """How many of the likeliest tokens are reported beside each new one; None: nothing is."""
    num_prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    num_prompt_tokens: int = 0
    num_fed_tokens: int = 0
    """Of a request that wants log-probabilities: known tokens that steps were given, and those
    that were cached."""


def hold(admission: Admission, error: str | None, block_size: int) -> HeldSlot:
    """Returns what is known of a request that has just been admitted."""
    return HeldSlot(
        request_id=admission.request_id,
        num_tokens=len(admission.token_ids),
        num_blocks=len(admission.cached_blocks),
        error=error,
        num_unseen=len(admission.token_ids),
        has_grammar=bool(admission.sampling.grammar),
        wants_logprobs=admission.sampling.wants_logprobs,
        num_logprobs=admission.sampling.num_logprobs,
        num_prompt_logprobs=admission.sampling.num_prompt_logprobs,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_fed_tokens=len(admission.cached_blocks) * block_size,
    )
