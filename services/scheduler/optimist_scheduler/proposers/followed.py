"""A request that proposers follow, and what of it they were sent."""

from dataclasses import dataclass, field

from optimist.proposer.v1 import proposer_pb2
from optimist_common.columns import to_bytes
from optimist_scheduler.proposers.links import ProposerLink

LONGEST_BACKOFF_STEPS = 64


@dataclass(slots=True)
class Followed:
    """A request that proposers follow, and what of it was sent."""

    opening: proposer_pb2.Open
    token_ids: list[int] = field(default_factory=list)
    """Output so far, as far as it was observed."""
    num_sent_tokens: int = 0
    must_open: bool = True
    batch: int = -1
    """The last batch that names the request."""
    link: ProposerLink | None = None
    """Where that batch went."""
    repaired_before: int = -1
    """Gaps of batches below this one were mended since."""
    num_gaps: int = 0
    """Gaps without an answer that had none between."""
    num_skipped_steps: int = 0
    """Steps that are still not observed, because of gaps."""
    has_bad_window: bool = False
    """Whether a window was refused, which is logged once."""

    def take(self, token_ids: list[int]) -> bool:
        """Takes new output; returns whether it is to be sent at once."""
        self.token_ids += token_ids
        if self.num_skipped_steps:
            self.num_skipped_steps -= 1
            return False
        return True

    def add_to(self, batch: proposer_pb2.ProposeRequest, link: ProposerLink) -> int:
        """Adds what is unsent to a batch for a proposer; returns its size in bytes."""
        num_bytes = 0
        if self.must_open:
            batch.opens.append(self.opening)
            num_bytes += self.opening.ByteSize()
        if self.num_sent_tokens < len(self.token_ids):
            tokens = to_bytes(self.token_ids[self.num_sent_tokens :])
            batch.observations.add(
                request_id=self.opening.request_id,
                position=self.num_sent_tokens,
                token_ids=tokens,
            )
            num_bytes += len(tokens)
        if self.link is not link:
            if self.link is not None:
                self.link.num_requests -= 1
            link.num_requests += 1
        self.must_open = False
        self.num_sent_tokens = len(self.token_ids)
        self.batch, self.link = batch.batch, link
        return num_bytes

    def begin_anew(self) -> None:
        """Prepares to send another proposer everything."""
        self.must_open, self.num_sent_tokens = True, 0
        self.repaired_before = self.batch
        self.num_gaps = self.num_skipped_steps = 0

    def repair(self, num_known_tokens: int) -> bool:
        """Prepares to send again what a proposer lacks.

        Returns whether that is to be sent at once: if it did not help before, it waits ever longer.
        """
        self.must_open = num_known_tokens < 0
        self.num_sent_tokens = min(max(num_known_tokens, 0), self.num_sent_tokens)
        self.repaired_before = self.batch
        self.num_gaps += 1
        if self.num_gaps == 1:
            return True
        self.num_skipped_steps = min(2 ** min(self.num_gaps, 16), LONGEST_BACKOFF_STEPS)
        return False
