"""Settings of every service about who may reach it, and how it reaches others."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from optimist_common.network.channel import Tls, load_tls
from optimist_common.network.endpoints import is_loopback
from optimist_common.settings import ServiceSettings


def _without_brackets(host: str) -> str:
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("must be an address of this machine or its name") from None
    return host.removeprefix("[").removesuffix("]")


Host = Annotated[str, AfterValidator(_without_brackets)]
"""A setting that names the address to listen on; one of IPv6 may stand in brackets."""


class NetworkSettings(ServiceSettings):
    """Settings of a service that speaks gRPC with others: plaintext is for the loopback alone."""

    peers: ClassVar[tuple[str, ...]] = ()
    """Names of the settings that hold the addresses of other services."""

    host: Host = Field("127.0.0.1", description="address to listen on")
    tls_cert: str = Field("", description="PEM file with this service's certificate")
    tls_key: str = Field("", description="PEM file with its key")
    tls_ca: str = Field("", description="PEM file with the authority of all services' certificates")
    insecure: bool = Field(
        False, description="whether to go without protection beyond the loopback"
    )

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        if len({bool(path) for path in (self.tls_cert, self.tls_key, self.tls_ca)}) > 1:
            raise ValueError("--tls-cert, --tls-key and --tls-ca must be given together")
        if self.insecure:
            return self
        self._require_protected_host()
        if not self.tls_cert:
            for flag, addresses in self.peer_addresses().items():
                _require_loopback(flag, addresses)
        return self

    def _require_protected_host(self) -> None:
        """Raises ValueError if strangers could call this service."""
        if not self.tls_cert and not is_loopback(self.host):
            raise ValueError(
                f"--host: {self.host} can be reached by others: give --tls-cert, --tls-key and "
                "--tls-ca, or --insecure if the network keeps strangers out"
            )

    def peer_addresses(self) -> dict[str, Sequence[str]]:
        """Returns the addresses of other services, by the flags that name them."""
        values = {name: getattr(self, name) for name in self.peers}
        return {
            "--" + name.replace("_", "-"): [value] if isinstance(value, str) else value
            for name, value in values.items()
        }

    def tls(self) -> Tls | None:
        """Reads the files for TLS between services; raises SetupError if they cannot be used."""
        return load_tls(self.tls_cert, self.tls_key, self.tls_ca)


def _require_loopback(flag: str, addresses: Sequence[str]) -> None:
    for address in addresses:
        if not is_loopback(address.rpartition(":")[0]):
            raise ValueError(
                f"{flag}: what is said with {address} could be read and changed: give "
                "--tls-cert, --tls-key and --tls-ca, or --insecure if the network keeps "
                "strangers out"
            )
