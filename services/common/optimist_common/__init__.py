"""What at least two services use: settings, errors, logs, metrics, gRPC conventions, columns."""

import os

# Without this, a process that uses gRPC and starts another one by fork crashes in the child now and
# then, before that has begun: gRPC would make the child ready for calls that it never makes.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
