"""The names of the rules by which drafts are accepted."""

from enum import StrEnum


class AcceptanceRule(StrEnum):
    """Which tokens a pass emits, given its logits and drafts."""

    COUPLED = "coupled"
    """The token that would be sampled anyway; the text for a seed does not depend on drafts."""
    REJECTION = "rejection"
    """With probability p/q, else a token of what is left of p; only the distribution stays."""
    SYNTHETIC = "synthetic"
    """By chance alone, for measurements; the text means nothing."""
