"""How every service opens a gRPC channel to another, and the mutual TLS between them."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from optimist_common.errors import SetupError


@dataclass(frozen=True)
class Tls:
    """A service's certificate and key, and the authority that vouches for those of the others."""

    certificate: bytes
    key: bytes
    authority: bytes | None
    """None where clients have no certificate."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns what a server needs; with an authority only clients of it are admitted."""
        is_mutual = self.authority is not None
        pair = self.key, self.certificate
        return grpc.ssl_server_credentials([pair], self.authority, require_client_auth=is_mutual)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns what a client needs to be admitted, and to know the server."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


def load_tls(certificate: str, key: str, authority: str) -> Tls | None:
    """Reads the files; returns None if none is named.

    Raises:
        SetupError: A file cannot be read, or key and certificate do not belong together.
    """
    if not certificate:
        return None
    flags = {"--tls-cert": certificate, "--tls-key": key, "--tls-ca": authority}
    of_service, its_key, authorities = [_read(flag, path) for flag, path in flags.items()]
    check_key(certificate, key, "--tls")
    try:
        ssl.create_default_context(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise SetupError(f"--tls-ca: {authority} holds no certificates in PEM") from None
    return Tls(of_service, its_key, authorities)


def check_key(certificate: str, key: str, flags: str) -> None:
    """Raises SetupError if a certificate and a key do not belong together, or are no PEM files."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        reason = error.strerror if not isinstance(error, ssl.SSLError) else error.reason
        raise SetupError(
            f"{flags}-cert, {flags}-key: {certificate} and {key} cannot be used: {reason}"
        ) from None


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SetupError(f"{flag}: cannot read {path}: {error.strerror}") from None


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
    """Opens a channel to host:port; it connects when it is first used, and again after a loss.

    Without `tls` it is plaintext. The server's certificate must name the host of the address, or
    `server_name` if that is given.
    """
    options: list[tuple[str, int | str]] = [*OPTIONS, *_RECONNECT, NO_PROXY]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)
