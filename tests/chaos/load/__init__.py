"""Requests of all kinds, the clients that ask them, and what became of them."""
