"""A value of the store that none of ours has written, or that exceeds the limits here."""

from enum import StrEnum


class WrongKind(StrEnum):
    """What is wrong with a value; for counting."""

    TYPE = "type"
    """It is a list, say, and no string."""
    FORMAT = "format"
    """It is not built as such a value is."""
    SIZE = "size"
    """It, or what it stands for, is larger than it may be."""
    DIGEST = "digest"
    """Its content is not the one that it is named by."""
    LIMIT = "limit"
    """The proposer would refuse it if a scheduler sent it."""
    TOKEN = "token"  # noqa: S105
    """It has tokens that the vocabulary lacks."""
    OUTPUT = "output"
    """It is another output than the one that is known here."""


class WrongValueError(ValueError):
    """A value of the store is not used; the message says what is wrong with it."""

    def __init__(self, kind: WrongKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
