"""The sections of bench/gpu.py, and what they share."""
