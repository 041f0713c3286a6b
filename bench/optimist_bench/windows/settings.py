"""What is run, and on which services."""

from typing import ClassVar

from pydantic import Field

from optimist_bench.harness.command import ProposerAlgorithm
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_common.settings import ServiceSettings


class WindowsSettings(VirtualSettings, ServiceSettings):
    """Runs requests with predictions in virtual time, on the cores of proposers and scheduler.

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
    pass_ms: float = Field(20.0, gt=0, description="how long a pass takes without its tokens")
    token_us: int = Field(5, ge=0, description="how much longer each token makes it")
    free_tokens: int = Field(0, ge=0, description="tokens of a pass that make it no longer")
    pass_row_us: int = Field(0, ge=0, description="how much longer each request makes it")
    depth: int = Field(2, ge=1, le=3, description="plans in flight")

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
