"""What clients of both kinds have in common."""

from dataclasses import dataclass, field

from optimist_client.retry import RetryPolicy

OPTIONS: list[tuple[str, int]] = [
    # A server that vanished is noticed within half a minute. The timeout of pings is what counts:
    # gRPC looks at that of keepalive nowhere (grpc/grpc#39239).
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that comes back is found again within seconds, at another address too. By default
    # gRPC waits up to two minutes between attempts, and 30 seconds between look-ups of a name.
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
]


@dataclass(frozen=True)
class Connection:
    """How calls to a server go."""

    api_key: str | None = field(default=None, repr=False)
    timeout: float | None = 600.0
    """Seconds until a call is ended, retries included; None waits for ever."""
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns what every call carries."""
        if self.api_key is None:
            return ()
        return (("authorization", f"Bearer {self.api_key}"),)
