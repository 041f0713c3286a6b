"""Candidates for the next tokens, and the tree that is made of them."""
