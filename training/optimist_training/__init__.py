"""Builds the bundled model: its data, tokenizer, weights and evaluation; trains drafters."""
