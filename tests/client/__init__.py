"""Tests of the client of the gRPC API."""
