"""The REST API: bodies, errors, endpoints."""
