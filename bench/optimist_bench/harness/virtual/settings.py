"""What services cost in virtual time, and how they work together."""

from typing import Literal

from pydantic import BaseModel, Field


class VirtualSettings(BaseModel):
    """What takes how much processor time, in microseconds, on what, and how it works together.

    The defaults are what the real services take on cores of an AMD EPYC, messages included.
    """

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
    looks_up: bool = Field(True, description="whether the worker looks drafts up in predictions")
    wait_ms: float = Field(10.0, ge=0, description="longest wait for a window between two passes")
    wait: Literal["paying", "always"] = Field("paying", description="when to wait that long")
