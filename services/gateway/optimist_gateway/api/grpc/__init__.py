"""The gRPC API for clients, beside the REST API."""
