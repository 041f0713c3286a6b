"""The process: the gRPC server, and the replay of a journal."""
