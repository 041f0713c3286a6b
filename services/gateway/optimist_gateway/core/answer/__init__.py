"""From the tokens of an answer to pieces of text, and its account."""
