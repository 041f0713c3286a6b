"""Alignment of what was generated with what was predicted."""
