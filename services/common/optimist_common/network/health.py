"""Asks a service over gRPC whether it serves; also `python -m ...health HOST:PORT`."""

import argparse
import os
import re
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from optimist_common.errors import SetupError
from optimist_common.network.channel import NO_PROXY, Tls, load_tls

TIMEOUT_SECONDS = 2.0


def is_serving(address: str, timeout: float, service: str = "", tls: Tls | None = None) -> bool:
    """Returns whether the server at `host:port` says SERVING; blocks for `timeout` seconds at most.

    A server that cannot be reached, or that answers too late, does not serve. `service` is empty
    for the whole server, or `liveness` or `steps` (see `server.py`).
    """
    request = health_pb2.HealthCheckRequest(service=service)
    if tls is None:
        channel = grpc.insecure_channel(address, options=[NO_PROXY])
    else:
        channel = grpc.secure_channel(address, tls.channel_credentials(), options=[NO_PROXY])
    with channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout)
        except grpc.RpcError:
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def main(arguments: list[str]) -> int:
    """Runs the command line; returns 0 if the server serves, 1 if not, 2 for a wrong call."""
    parser = argparse.ArgumentParser("python -m optimist_common.network.health")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument(
        "--service", default="", help="liveness or steps; empty for the whole server"
    )
    for name in ("cert", "key", "ca"):
        own = f"as the service's; else what OPTIMIST_<SERVICE>_TLS_{name.upper()} names"
        parser.add_argument(f"--tls-{name}", default=_of_service(name), metavar="FILE", help=own)
    try:
        options = parser.parse_args(arguments)
        tls = load_tls(options.tls_cert, options.tls_key, options.tls_ca)
    except SystemExit as end:
        return int(end.code or 0)
    except SetupError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    if is_serving(options.address, TIMEOUT_SECONDS, options.service, tls):
        return 0
    print(f"{options.address} is not serving", file=sys.stderr)  # noqa: T201
    return 1


def _of_service(name: str) -> str:
    """Returns the file that the variables of the only service of a container name, or none."""
    pattern = re.compile(f"OPTIMIST_[A-Z]+_TLS_{name.upper()}")
    found = {value for key, value in os.environ.items() if pattern.fullmatch(key)}
    return found.pop() if len(found) == 1 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
