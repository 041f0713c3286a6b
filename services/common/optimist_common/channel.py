"""How every service opens a gRPC channel to another."""

import grpc

from optimist_common.tls import Tls

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

# A peer that was restarted is found again within about a second.
_RECONNECT: list[tuple[str, int]] = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def open_channel(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """Opens a channel to `host:port`; it connects when it is first used, and again after a loss.

    With `tls` both sides show certificates; the server's must name the host of the address.
    """
    options = [*OPTIONS, *_RECONNECT]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)
