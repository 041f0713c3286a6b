"""Builds the bundled demonstration model: its data, tokenizer, weights and evaluation."""
