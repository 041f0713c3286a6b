"""What is trained on: edits, corpora, continuations, and their tokenizer."""
