"""What the scheduler may do: the user's choices, and the sizes of the worker."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.core.width.widths import DraftWidthPolicy
from optimist_scheduler.core.windows.window import MAX_NODES

MAX_PIPELINE_STAGES = 16
MOST_FORM_DRAFTS = 32
"""Most drafts of a row in one pass that come from the form of its answer."""
FORM_BESIDE_WINDOWS = 24
"""The same beside those of its window."""
MOST_PADDED_FORM_DRAFTS = 8
"""The same where a pass takes their time even if they are not made."""


def require_token_per_request(max_num_seqs: int, max_num_batched_tokens: int) -> None:
    """Raises ValueError if more requests may run than a pass has tokens."""
    if max_num_seqs > max_num_batched_tokens:
        raise ValueError(
            f"max_num_seqs: must be at most max_num_batched_tokens ({max_num_batched_tokens}), "
            f"so that each request gets a token in each pass, not {max_num_seqs}"
        )


class SchedulingOptions(BaseModel):
    """What the user chooses, whatever the worker is like."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    policy: Literal["fcfs", "priority"] = Field(
        "fcfs", description="who goes first: fcfs (first come, first served) or priority"
    )
    max_plans_in_flight: int = Field(
        2, ge=1, le=3, description="plans at the worker at once; 1 waits for each result"
    )
    enable_optimistic_scheduling: bool = Field(
        True, description="decide the next step while the worker computes"
    )
    num_pipeline_stages: int = Field(
        0,
        ge=0,
        le=MAX_PIPELINE_STAGES,
        description="plans at a worker of several stages, a request in one of them; 0: worker's",
    )
    enable_prefix_caching: bool = Field(True, description="share the KV blocks of equal beginnings")
    num_speculative_tokens: int = Field(
        64, ge=0, le=MAX_NODES, description="most drafts per request and pass; 0: no speculation"
    )
    draft_width: DraftWidthPolicy = Field(
        "goodput", description="how many to draft: goodput (what pays) or fixed (the limits)"
    )
    proposer_wait: Literal["paying", "always"] = Field(
        "paying",
        description="when steps wait for proposers: paying (if that brings more) or always",
    )
    prefill_share: float = Field(
        0.5, ge=0, le=1, description="part of a pass that prompts get at least, if drafts want it"
    )
    starvation_seconds: float = Field(
        30.0, gt=0, description="longest wait of a request that later ones have overtaken"
    )
    max_num_waiting: int = Field(512, ge=1, description="most requests that wait")
    max_wait_seconds: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="longest time that a request may probably wait for its turn; 0: any",
    )


class EngineConfig(SchedulingOptions):
    """All that a schedule keeps to, the worker's sizes included."""

    vocab_size: int = Field(ge=1)
    """Token ids are 0 to vocab_size - 1."""
    max_model_len: int = Field(ge=1)
    """Longest sequence of the model, prompt and output, in tokens."""
    num_blocks: int = Field(ge=1)
    """KV blocks; ids are 0 to num_blocks - 1."""
    block_size: int = Field(16, ge=1)
    """Tokens per KV block."""
    max_num_seqs: int = Field(64, ge=1)
    """Requests that run at once; slots are 0 to max_num_seqs - 1."""
    max_num_batched_tokens: int = Field(2048, ge=1)
    """Tokens of one forward pass, drafts included."""
    num_pipeline_stages: int = Field(1, ge=1, le=MAX_PIPELINE_STAGES)
    """Stages of the worker: plans at it at once, a request in one of them."""
    drafter: Drafter | None = None
    """What drafts for rows whose window has nothing to draft from; None if nothing does."""
    pads_passes: bool = False
    """Whether a pass takes the time of all drafts that are planned, not of those that are made."""

    @model_validator(mode="after")
    def _every_row_gets_a_token(self) -> Self:
        require_token_per_request(self.max_num_seqs, self.max_num_batched_tokens)
        return self

    @property
    def plan_depth(self) -> int:
        """Most plans at the worker: one per stage of a pipeline, else as configured."""
        return (
            self.num_pipeline_stages if self.num_pipeline_stages > 1 else self.max_plans_in_flight
        )

    @property
    def looks_up_selectively(self) -> bool:
        """Whether there is a drafter that makes those drafts only that are likely enough, for which
        alone a pass takes its time."""
        return self.drafter is not None and self.drafter.is_lookup and not self.pads_passes

    @property
    def max_form_drafts(self) -> int:
        """Most drafts of a row and pass from the form of its answer."""
        return MOST_PADDED_FORM_DRAFTS if self.pads_passes else MOST_FORM_DRAFTS

    @property
    def form_beside(self) -> int:
        """Most drafts of a row and pass from the form of its answer beside those of its window."""
        return 0 if self.pads_passes else FORM_BESIDE_WINDOWS

    @property
    def max_draft_tokens(self) -> int:
        """Most drafts of a request and pass."""
        return min(self.num_speculative_tokens, self.max_num_batched_tokens - 1)

    @property
    def kv_capacity_tokens(self) -> int:
        """Longest sequence that fits the KV memory, in tokens."""
        return self.num_blocks * self.block_size

    @property
    def max_length(self) -> int:
        """Longest sequence that can run, in tokens."""
        return min(self.max_model_len, self.kv_capacity_tokens)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks `num_tokens` tokens fill or begin."""
        return -(-num_tokens // self.block_size)
