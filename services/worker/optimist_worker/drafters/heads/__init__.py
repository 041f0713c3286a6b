"""Draft heads, and their checkpoints."""
