"""What a prediction was worth."""


class PredictionAccount:
    """Counts predicted tokens that were kept, and positions that were drafted and never kept."""

    def __init__(self, num_predicted_tokens: int) -> None:
        self._drafted = bytearray(num_predicted_tokens)
        self._kept = bytearray(num_predicted_tokens)
        self.num_accepted_tokens = 0

    def record(self, offset: int, num_drafted: int, num_kept: int) -> None:
        """Notes one verification.

        Args:
            offset: Position in the prediction of the first draft.
            num_drafted: Predicted tokens that were verified.
            num_kept: How many of them, from the front, were accepted and delivered.
        """
        self._drafted[offset : offset + num_drafted] = b"\1" * num_drafted
        self._kept[offset : offset + num_kept] = b"\1" * num_kept
        self.num_accepted_tokens += num_kept

    @property
    def num_rejected_tokens(self) -> int:
        """Positions of the prediction that were drafted at least once and never kept."""
        # Every kept position was drafted too.
        return self._drafted.count(1) - self._kept.count(1)
