"""What at least two services use: settings, errors, logs, metrics, gRPC conventions, columns."""
