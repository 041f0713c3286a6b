"""The rows of a step: their state, the flat batch of a pass, and its outputs."""
