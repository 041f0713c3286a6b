"""What schedulers say about the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from optimist_gateway.core.error import FieldError, Path


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

    def require_known(self, token_ids: Sequence[int], path: Path) -> None:
        """Raises FieldError, which has the path, if a token is not one of the model's."""
        size = self.vocab_size
        unknown = next((token for token in token_ids if not 0 <= token < size), None)
        if unknown is not None:
            raise FieldError(path, f"{unknown} is not a token of this model (0 to {size - 1})")

    def require_priorities(self) -> None:
        """Raises FieldError if no scheduler honours priorities."""
        if self.is_fcfs:
            raise FieldError(
                ("priority",),
                "is not supported by the scheduler's policy fcfs; --policy priority honours it",
                code="unsupported_value",
            )
