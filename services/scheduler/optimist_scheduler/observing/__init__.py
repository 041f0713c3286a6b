"""Metrics, and the spans of requests."""
