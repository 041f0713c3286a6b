"""Layers with a state that every token changes: short convolutions and gated delta rules."""
