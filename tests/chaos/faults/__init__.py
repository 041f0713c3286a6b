"""Faults: when they come, what does them, and how long requests stand still after them."""
