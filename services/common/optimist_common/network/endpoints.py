"""Addresses as host:port, and where peers are: names are looked up every second.

An address of IPv6 stands in brackets before a port, and without them by itself.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, NoReturn

from pydantic import AfterValidator

from optimist_common.settings import CommaSeparated


def split_address(address: str) -> tuple[str, int]:
    """Returns host, without brackets, and port of host:port; raises ValueError if it is not."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"must be host:port, with commas between several, not {address!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets, as [::1]:50051, not {address!r}")
    return host, int(port)


def join_address(host: str, port: int | str) -> str:
    """Returns host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Returns whether an address is of this machine alone; names other than localhost are not."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


logger = logging.getLogger(__name__)

RESOLVE_SECONDS = 1.0
"""Time between two look-ups of a name."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a host's name; raises OSError if it has none."""


@dataclass(frozen=True, order=True)
class Peer:
    """One process of a service."""

    target: str
    """What a channel is opened to, address:port."""
    server_name: str
    """What its certificate must name: the host that was set."""


@dataclass(frozen=True)
class Change:
    """What became of the peers."""

    appeared: tuple[Peer, ...] = ()
    vanished: tuple[Peer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.appeared or self.vanished)


class PeerSet:
    """The peers of one setting, which names a host and port."""

    def __init__(self, address: str) -> None:
        """Begins with the peer at an address, or without any if it is a name.

        Raises:
            ValueError: It is not host:port.
        """
        self.host, self._port = split_address(address)
        self.peers: tuple[Peer, ...] = (Peer(address, self.host),) if self.is_literal else ()

    @property
    def is_literal(self) -> bool:
        """Whether there is nothing to resolve."""
        return _ip_version(self.host) is not None

    def update(self, addresses: Iterable[str]) -> Change:
        """Takes the addresses that the name has now; without any all peers stay.

        A peer is always identified by its address, never by the name: it must stay the same one
        while the name gets further addresses or loses them.
        """
        usable = _of_one_family(addresses)
        if not usable or self.is_literal:
            return Change()
        now = tuple(Peer(join_address(ip, self._port), self.host) for ip in usable)
        before, self.peers = self.peers, now
        return Change(
            tuple(peer for peer in now if peer not in before),
            tuple(peer for peer in before if peer not in now),
        )


class Endpoints:
    """Follows the peers of several settings."""

    def __init__(self, addresses: Sequence[str], resolve: Resolve | None = None) -> None:
        """Takes the settings, each host:port; nothing is looked up before `run`.

        Raises:
            ValueError: One of them is not host:port.
        """
        self._sets = [PeerSet(address) for address in addresses]
        self._resolve = resolve or resolve_host

    @property
    def peers(self) -> tuple[Peer, ...]:
        """All peers now."""
        return tuple(peer for one in self._sets for peer in one.peers)

    async def run(self, change: Callable[[Change], None]) -> NoReturn:
        """Looks the names up for ever, and reports the peers that appeared and vanished.

        A name that takes long delays no other.
        """
        async with asyncio.TaskGroup() as tasks:
            for one in self._sets:
                if not one.is_literal:
                    tasks.create_task(self._follow(one, change))
            await asyncio.Event().wait()
        raise AssertionError("a task group ended that has no end")

    async def _follow(self, one: PeerSet, change: Callable[[Change], None]) -> None:
        is_known = True
        while True:
            try:
                addresses = await self._resolve(one.host)
            except (OSError, UnicodeError) as error:
                addresses = []
                if is_known:
                    logger.warning("%s is not resolved: %s", one.host, error)
            is_known = bool(addresses)
            if what := one.update(addresses):
                change(what)
            await asyncio.sleep(RESOLVE_SECONDS)


async def resolve_host(host: str) -> Sequence[str]:
    """Returns the addresses of a host's name; raises OSError if it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _require_addresses(addresses: list[str]) -> list[str]:
    for address in addresses:
        split_address(address)
    if len(set(addresses)) < len(addresses):
        raise ValueError("must not name one twice")
    return addresses


Addresses = Annotated[CommaSeparated, AfterValidator(_require_addresses)]
"""A setting that names peers: `host:port,host:port`."""


def _ip_version(host: str) -> int | None:
    try:
        return ip_address(host).version
    except ValueError:
        return None


def _of_one_family(addresses: Iterable[str]) -> list[str]:
    """Returns the IPv4 addresses, or the others without any, sorted.

    A process that can be reached over both has one of each.
    """
    known = set(addresses)
    of_four = {address for address in known if _ip_version(address) == 4}
    return sorted(of_four or known)
