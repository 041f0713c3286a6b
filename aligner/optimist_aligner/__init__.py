"""Follows an output through all that it may repeat, and says how it goes on: no service in it."""
