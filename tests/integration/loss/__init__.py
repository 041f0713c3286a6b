"""Services that are lost in the middle of requests."""
