"""What is run, on which services, and what these cost in virtual time."""

from typing import ClassVar, Literal

from pydantic import Field

from optimist_bench.harness.command import ProposerAlgorithm
from optimist_common.settings import ServiceSettings


class WindowsSettings(ServiceSettings):
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
    depth: int = Field(2, ge=1, le=3, description="plans in flight")
    wait_ms: float = Field(10.0, ge=0, description="longest wait for a window between two passes")
    wait: Literal["paying", "always"] = Field("paying", description="when to wait that long")
