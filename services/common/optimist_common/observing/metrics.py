"""Prometheus metrics over HTTP for the services that have no HTTP port of their own."""

from prometheus_client import start_http_server

from optimist_common.errors import SetupError
from optimist_common.network.address import join_address


def serve_metrics(host: str, port: int) -> None:
    """Serves the process's metrics at http://host:port/metrics; port 0 serves none.

    Raises:
        SetupError: The port is taken or the host unknown.
    """
    if port == 0:
        return
    try:
        start_http_server(port, addr=host)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {join_address(host, port)} for metrics: {error.strerror}; "
            "choose another --metrics-port"
        ) from None
