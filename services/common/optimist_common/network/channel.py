"""How every service opens a gRPC channel to another."""

import grpc

from optimist_common.network.tls import Tls

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that is stopped, or behind a broken network, still has an open connection: only a ping
    # shows it. It counts as lost within ten seconds, for clients and servers alike. The timeout of
    # pings is what counts: gRPC looks at that of keepalive nowhere (grpc/grpc#39239).
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]

NO_PROXY = ("grpc.enable_http_proxy", 0)
"""Services are reached as they are set: gRPC would ask http_proxy for the loopback too."""

# A peer that was restarted is found again within about a second, at another address too: gRPC looks
# a name up again when a connection failed, but by default at most every 30 seconds.
_RECONNECT: list[tuple[str, int]] = [
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name how long a single attempt may take, at least.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def open_channel(
    address: str, tls: Tls | None = None, *, server_name: str = ""
) -> grpc.aio.Channel:
    """Opens a channel; it connects when it is first used, and again after a loss.

    Args:
        address: Where to, host:port.
        tls: What both sides show each other; None for plaintext.
        server_name: What the server's certificate must name; empty for the host of the address.
    """
    options: list[tuple[str, int | str]] = [*OPTIONS, *_RECONNECT, NO_PROXY]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)
