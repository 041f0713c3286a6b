"""Weights that are written instead of learned, layer by layer."""
