"""Asks a service over gRPC whether it serves; also `python -m optimist_common.health HOST:PORT`."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_SECONDS = 2.0


def is_serving(address: str, timeout: float) -> bool:
    """Tells whether the server at `host:port` says SERVING; blocks for `timeout` seconds at most.

    A server that cannot be reached, or that answers too late, does not serve.
    """
    request = health_pb2.HealthCheckRequest()
    with grpc.insecure_channel(address) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout)
        except grpc.RpcError:
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def main(arguments: list[str]) -> int:
    """Runs the command line; returns 0 if the server serves, 1 if not, 2 for a wrong call."""
    if len(arguments) != 1:
        print("usage: python -m optimist_common.health HOST:PORT", file=sys.stderr)  # noqa: T201
        return 2
    if is_serving(arguments[0], TIMEOUT_SECONDS):
        return 0
    print(f"{arguments[0]} is not serving", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
