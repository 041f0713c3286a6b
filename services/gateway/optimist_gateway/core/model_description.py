"""What schedulers say about the model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelDescription:
    """The model, and what it takes."""

    vocab_size: int
    max_model_len: int
    """Longest sequence that can run, prompt and output together, in tokens."""
    eos_token_ids: tuple[int, ...]
    is_synthetic: bool
    """Whether the worker accepts drafts by chance: the text is meaningless, for benchmarks only."""
    is_fcfs: bool = False
    """Whether requests run first come, first served, so that none may have a priority; a scheduler
    whose version does not say is taken to honour priorities."""
    max_draft_tokens: int | None = None
    """Most drafts of a request and pass; None if no scheduler says."""
