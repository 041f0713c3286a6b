"""Where a draft came from."""

from enum import IntEnum


class DraftSource(IntEnum):
    """The numbers of `optimist.common.v1.DraftSource`."""

    TARGET = 0
    """No draft: the token came from the target model itself."""
    PREDICTION = 1
    DRAFT_MODEL = 2
    QUANTISED = 3
    MEDUSA = 4
    EAGLE = 5
    NGRAM = 6
    """The request's own text, where its last tokens occur before."""

    @property
    def label(self) -> str:
        """Name in metrics and answers."""
        return self.name.lower()
