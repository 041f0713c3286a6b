"""A request that is followed: what is drafted for it, and whether that is worth the time."""

from array import array
from collections.abc import Sequence

from optimist_aligner import INT32, Draft, Follower, Reference
from optimist_vllm.core.account import Account

_FIRST_PREDICTED_GAIN = 4.0
"""What is expected of a request with a prediction; one without rests at first."""
_WOKEN_GAIN = 0.25
_SPAN = 16
"""Passes that a gain averages over."""
_LEAST_GAIN = 1 / 16
"""A request that gains less rests, however cheap drafting is."""
_WAKING_GAIN = 1.0
"""Tokens that drafts have to promise to wake a request that rests."""


class FollowedRequest:
    """The follower of a request, the drafts of its next pass, and its account.

    A request gains the accepted drafts per pass, averaged. One that gains less than looking for
    drafts costs rests: it is looked at once an eighth of its output is new, and wakes when what is
    found promises a token.

    Attributes:
        account: What the predictions were worth so far.
        draft_ns: Nanoseconds that drafting took and that were not reported yet.
        num_drafted: Drafts that were verified.
    """

    def __init__(
        self, reference: Reference, num_predicted: int, delivered: Sequence[int] = ()
    ) -> None:
        """Begins to follow.

        Args:
            reference: What the output may repeat, followed by chains.
            num_predicted: Its predicted tokens.
            delivered: Output of an earlier run, after which this one goes on [num_delivered].
        """
        self.account = Account(num_predicted)
        self.draft_ns = self.num_drafted = 0
        self._reference, self._delivered = reference, array(INT32, delivered)
        self._follower = self._follow()
        self._num_observed = 0
        self._gain = _FIRST_PREDICTED_GAIN if num_predicted else 0.0
        self._most_new = 16 if num_predicted else 128
        self._positions: Sequence[int] = ()

    @property
    def num_alignments(self) -> int:
        """How often the position in the predictions was searched for."""
        return self._follower.num_alignments

    def settle(self, new_token_ids: Sequence[int], drafts: Sequence[int]) -> list[int]:
        """Counts what became of the drafts of a pass.

        Args:
            new_token_ids: What the pass emitted, cut at the end of the output [num_new].
            drafts: What was verified, from the first draft on; what is no token fills up
                [num_drafts].

        Returns:
            Where each accepted draft was read from [num_accepted].
        """
        num_accepted = 0
        # The token after the accepted drafts is never the draft that it was verified against.
        for token_id, draft in zip(new_token_ids, drafts, strict=False):
            if token_id != draft:
                break
            num_accepted += 1
        positions = self._positions[: len(drafts)]
        self._positions = ()
        self.num_drafted += len(positions)
        self.account.settle(positions, num_accepted)
        self._gain += (num_accepted - self._gain) / _SPAN
        return list(positions[:num_accepted])

    def is_due(self, num_output_tokens: int, price: float) -> bool:
        """Returns whether to look for drafts now.

        Args:
            num_output_tokens: Length of the output.
            price: Tokens that the server emits in the time that a look takes.
        """
        if self._gain >= max(_LEAST_GAIN, price) or not self._num_observed:
            return True
        num_new = num_output_tokens - self._num_observed
        return num_new >= min(max(num_output_tokens // 8, 8), self._most_new)

    def find_path(
        self, output_token_ids: Sequence[int], most: int, min_value: float, price: float
    ) -> Draft:
        """Returns the likeliest continuation of the output as a chain; empty if it rests on.

        Args:
            output_token_ids: The whole output [num_output_tokens].
            most: Most tokens, at least 1.
            min_value: Least chance of a token.
            price: See `is_due`.
        """
        if len(output_token_ids) < self._num_observed:
            # Some of it was taken back.
            self._follower, self._num_observed = self._follow(), 0
        self._follower.observe(array(INT32, output_token_ids[self._num_observed :]))
        self._num_observed = len(output_token_ids)
        path = self._follower.propose(most, min_value)
        if self._gain < max(_LEAST_GAIN, price):
            if sum(path.values) < max(_WAKING_GAIN, price):
                return Draft()
            self._gain = max(_WOKEN_GAIN, price)
        return path

    def _follow(self) -> Follower:
        follower = self._reference.follow()
        if self._delivered:
            follower.observe(self._delivered)
        return follower

    def draft(self, positions: Sequence[int]) -> None:
        """Notes where the drafts of the next pass were read from [num_drafts]."""
        self._positions = positions
