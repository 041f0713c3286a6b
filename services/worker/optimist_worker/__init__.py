"""Weights and KV memory: forward and verify passes, acceptance."""
