"""The default algorithm: candidates for the next token, weighed, and the tree that they make."""
