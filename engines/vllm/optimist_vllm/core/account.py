"""What the predictions of a request were worth."""

from collections.abc import Sequence

_DRAFTED, _KEPT = 1, 2


class Account:
    """Counts predicted tokens that were kept, and positions that were drafted and never kept.

    Attributes:
        num_accepted: Drafts from the predictions that were accepted and delivered.
        num_rejected: Positions that were drafted at least once and never kept.
    """

    def __init__(self, num_predicted: int) -> None:
        """Takes the number of tokens of all predictions."""
        self._marks = bytearray(num_predicted)
        self.num_accepted = self.num_rejected = 0

    def settle(self, positions: Sequence[int], num_kept: int) -> None:
        """Counts the drafts of a pass.

        Args:
            positions: Where each was read from, negative outside the predictions [num_drafts].
            num_kept: How many, from the first on, were accepted and delivered.
        """
        marks = self._marks
        for index, position in enumerate(positions):
            if position < 0:
                continue
            before, is_kept = marks[position], index < num_kept
            self.num_accepted += is_kept
            self.num_rejected += (not is_kept and not before) - (is_kept and before == _DRAFTED)
            marks[position] = before | (_DRAFTED | _KEPT if is_kept else _DRAFTED)
