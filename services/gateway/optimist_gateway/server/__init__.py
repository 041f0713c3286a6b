"""The process: HTTP and gRPC servers, what every request passes, settings."""
