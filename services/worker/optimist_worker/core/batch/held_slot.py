"""What the host knows of a slot; all that moves with its steps is in the SlotTable."""

from dataclasses import dataclass

from optimist_worker.core.plan import Admission


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
    """Whether anything is told of how likely its tokens are."""
    num_logprobs: int | None = None
    """How many of the likeliest tokens are told of beside each new one; None: nothing is told."""
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
