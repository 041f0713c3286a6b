"""Many requests in every way to schedule or to draft: the same answers."""
