"""Settings of the scheduler."""

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from optimist_common.network.endpoints import Addresses
from optimist_common.network.settings import NetworkSettings
from optimist_common.observing.settings import ObservedSettings
from optimist_scheduler.core.requests.config import SchedulingOptions, require_token_per_request


class SchedulerSettings(SchedulingOptions, NetworkSettings, ObservedSettings):
    """Decides what the workers run next, and keeps the truth about requests."""

    section: ClassVar[str] = "scheduler"
    peers: ClassVar[tuple[str, ...]] = ("workers", "proposers")

    port: int = Field(50051, ge=0, le=65535, description="port of the gRPC service")
    workers: Addresses = Field(
        ["127.0.0.1:50052"], description="host:port of the workers of one model, with commas"
    )
    proposers: Addresses = Field(
        ["127.0.0.1:50053"], description="host:port of the proposers, with commas; may be empty"
    )
    max_num_seqs: int = Field(0, ge=0, description="most requests that run at once; 0: worker's")
    max_num_batched_tokens: int = Field(
        0, ge=0, description="most tokens of a forward pass; 0: worker's"
    )
    proposer_wait_ms: float = Field(
        10.0, ge=0, description="longest wait for a proposer's answer between two passes, in ms"
    )
    proposer_prompt_tokens: int = Field(
        131_072, ge=0, le=1_048_576, description="tokens of a prompt's end that proposers are shown"
    )
    follow: Literal["all", "predictions"] = Field(
        "all", description="which requests proposers follow: all, or those with predictions"
    )
    replay_log: str = Field(
        "", description="file to append what is received and decided to; empty: none"
    )
    replay_log_mib: int = Field(
        256, ge=1, le=1_048_576, description="size in MiB at which that log ends"
    )
    hang_seconds: float = Field(
        60.0, gt=0, description="a worker that answers no plan for so long is taken for stuck"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port of /metrics; 0 serves none")

    @property
    def decisive(self) -> str:
        """What of them a scheduler decides by, as JSON."""
        names = {*SchedulingOptions.model_fields, "max_num_seqs", "max_num_batched_tokens"}
        return self.model_dump_json(include=names)

    @field_validator("workers")
    @classmethod
    def _has_a_worker(cls, values: list[str]) -> list[str]:
        if not values:
            raise ValueError("must name at least one")
        return values

    @model_validator(mode="after")
    def _every_row_gets_a_token(self) -> Self:
        if self.max_num_batched_tokens:
            require_token_per_request(self.max_num_seqs, self.max_num_batched_tokens)
        return self
