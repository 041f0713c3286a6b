"""The streams to proposers, and the requests that they follow."""
