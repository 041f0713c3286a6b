"""Every service on a host of its own: network namespaces on one bridge, of which pairs can be cut.

A pair is cut by giving each the other's address at a hardware address that nobody has: packets are
sent, and never arrive, in both directions, as when a switch loses them. It needs root and iproute2
and no firewall.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable

from tests.chaos.services.network import Network

# Reserved for tests of networks (RFC 2544).
_NETWORK = "198.18"
_NOBODY = "02:00:00:00:00:01"
_PORT = 50050
_HUB = "hub"
_OUTSIDE = 1
"""Last number of the address of whoever runs the tests."""


def missing_for_namespaces() -> str:
    """Returns why there can be no namespaces here; empty if there can be."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2 (Debian: apt-get install iproute2)"
    name = f"optimist-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"no network namespace can be made here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Namespaces(Network):
    """The hosts by the names of their services."""

    def __init__(self) -> None:
        """Makes a bridge, with this process at one of its ports."""
        self._prefix = f"optimist-{os.getpid()}-"
        # Interfaces of this process's own namespace are named after it too.
        self._subnet = f"{_NETWORK}.{os.getpid() % 256}"
        self._numbers: dict[str, int] = {}
        self._num_places: dict[str, int] = {}
        self._add_namespace(_HUB)
        self._in(_HUB, "link add bridge type bridge")
        self._in(_HUB, "link set bridge up")
        self._outside = f"o{os.getpid()}"
        _ip(f"link add {self._outside} type veth peer name outside netns {self._prefix}{_HUB}")
        self._in(_HUB, "link set outside master bridge up")
        _ip(f"address add {self._subnet}.{_OUTSIDE}/24 dev {self._outside}")
        _ip(f"link set {self._outside} up")

    def place(self, name: str) -> tuple[str, int]:
        """See `Network`; each call for one name gives another port."""
        if name not in self._numbers:
            self._add_host(name)
        self._num_places[name] = port = self._num_places.get(name, _PORT - 1) + 1
        return self._address(name), port

    def command(self, name: str, command: list[str]) -> list[str]:
        """See `Network`."""
        return ["ip", "netns", "exec", self._prefix + name, *command]

    def cut(self, one: str, others: Iterable[str]) -> None:
        """Lets no packet pass between a host and others, until `heal`."""
        self._change(one, others, "replace", f"lladdr {_NOBODY} nud permanent")

    def heal(self, one: str, others: Iterable[str]) -> None:
        """Lets packets pass again."""
        self._change(one, others, "del")

    async def close(self) -> None:
        """See `Network`."""
        _ip(f"link del {self._outside}")
        for name in (_HUB, *self._numbers):
            _ip(f"netns del {self._prefix}{name}")

    def _change(self, one: str, others: Iterable[str], verb: str, more: str = "") -> None:
        for other in others:
            for here, there in ((one, other), (other, one)):
                self._in(here, f"neigh {verb} {self._address(there)} dev eth0 {more}")

    def _address(self, name: str) -> str:
        return f"{self._subnet}.{self._numbers[name]}"

    def _add_host(self, name: str) -> None:
        number = len(self._numbers) + _OUTSIDE + 1
        self._numbers[name] = number
        self._add_namespace(name)
        peer = f"peer name eth0 netns {self._prefix}{name}"
        self._in(_HUB, f"link add port{number} type veth {peer}")
        self._in(_HUB, f"link set port{number} master bridge up")
        self._in(name, f"address add {self._address(name)}/24 dev eth0")
        self._in(name, "link set eth0 up")

    def _add_namespace(self, name: str) -> None:
        _ip(f"netns add {self._prefix}{name}")
        self._in(name, "link set lo up")

    def _in(self, name: str, arguments: str) -> None:
        _ip(f"-n {self._prefix}{name} {arguments}")


def _ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {arguments}: {done.stderr.strip()}")
