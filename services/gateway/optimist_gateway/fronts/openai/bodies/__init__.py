"""The bodies of requests."""
