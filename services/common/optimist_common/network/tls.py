"""Mutual TLS between services, from three files that every service has."""

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
    authority: bytes

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns what a server needs that admits only clients with a certificate."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], self.authority, require_client_auth=True
        )

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
    tls = Tls(
        *(
            _read(flag, path)
            for flag, path in (
                ("--tls-cert", certificate),
                ("--tls-key", key),
                ("--tls-ca", authority),
            )
        )
    )
    check_key(certificate, key, "--tls")
    try:
        ssl.create_default_context(cadata=tls.authority.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise SetupError(f"--tls-ca: {authority} holds no certificates in PEM") from None
    return tls


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
