"""The requests that hold slots, and the rows of their steps."""
