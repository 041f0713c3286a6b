"""What is run, on which services, and what these cost in virtual time."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from optimist_bench.harness.command import ProposerAlgorithm
from optimist_common.settings import ServiceSettings


class VirtualSettings(BaseModel):
    """A run in virtual time: what takes how much processor time, in microseconds, and on what.

    The defaults are what the real services take on cores of an AMD EPYC, messages included.
    """

    virtual: bool = Field(
        False, description="whether to compute the run in virtual time: true or false"
    )
    cores: int = Field(
        0, ge=0, le=1024, description="cores that virtual services share; 0: each has its own"
    )
    wire_us: float = Field(50.0, ge=0, description="how long a message is on its way")
    step_us: float = Field(800.0, ge=0, description="scheduler, for a step")
    row_us: float = Field(30.0, ge=0, description="scheduler, for a row of a step")
    window_us: float = Field(30.0, ge=0, description="scheduler, for a window")
    message_us: float = Field(
        170.0, ge=0, description="scheduler, for a batch, its answer, or a new request"
    )
    batch_us: float = Field(330.0, ge=0, description="proposer, for a batch")
    observation_us: float = Field(36.0, ge=0, description="proposer, for an observation")
    opening_us: float = Field(450.0, ge=0, description="proposer, for a request that it opens")
    worker_us: float = Field(600.0, ge=0, description="worker, for a step, on a core")
    worker_row_us: float = Field(20.0, ge=0, description="worker, for a row of a step, on a core")
    load_token_us: float = Field(2.0, ge=0, description="who sends the requests, for a token")


class WindowsSettings(VirtualSettings, ServiceSettings):
    """Runs requests with predictions on a simulated worker, with real proposers and scheduler.

    The model says the text of each edit; passes take a given time. --json prints the report as one
    line of JSON instead.
    """

    section: ClassVar[str] = "bench_windows"

    pairs: str = Field("", description="JSON lines with `before` and `after`; empty: generated")
    tokenizer: str = Field(
        "models/tiny-edit/tokenizer.json", description="tokenizer file of Hugging Face's library"
    )
    algorithm: ProposerAlgorithm = Field(
        "auto", description="what the proposers follow with: auto or line"
    )
    requests: int = Field(256, ge=1, le=100_000, description="requests, the texts in turn")
    concurrency: int = Field(64, ge=1, le=1024, description="requests at a time")
    replicas: int = Field(1, ge=1, le=16, description="proposers, each with a memory of its own")
    affinity: bool = Field(True, description="whether a request stays with one: true or false")
    pass_ms: float = Field(20.0, gt=0, description="how long a pass takes without its tokens")
    token_us: int = Field(5, ge=0, description="how much longer each token makes it")
    free_tokens: int = Field(0, ge=0, description="tokens of a pass that make it no longer")
    pass_row_us: int = Field(0, ge=0, description="how much longer each request makes it")
    looks_up: bool = Field(
        True, description="whether the worker looks drafts up in predictions: true or false"
    )
    depth: int = Field(2, ge=1, le=3, description="plans in flight")
    wait_ms: float = Field(10.0, ge=0, description="longest wait for a window between two passes")
    wait: Literal["paying", "always"] = Field("paying", description="when to wait that long")

    def describe_worker(self) -> dict[str, int]:
        """Returns the settings of the simulated worker, but for its texts."""
        return {
            "step_us": round(1000 * self.pass_ms),
            "token_us": self.token_us,
            "free_tokens": self.free_tokens,
            "row_us": self.pass_row_us,
            "looks_up": self.looks_up,
            "max_num_seqs": self.concurrency,
            "max_num_batched_tokens": 128 * self.concurrency,
        }

    @model_validator(mode="after")
    def _is_simulated_with_affinity(self) -> Self:
        if self.virtual and not self.affinity:
            raise ValueError("affinity: must be true with --virtual true")
        return self
