"""Which names a client may call the gateway by.

A page of somebody else's can make its own name lead to a server on the loopback (DNS rebinding);
the browser then takes the server for that page's, and lets it ask. It cannot do so with an address,
and sends the name as the header Host.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address

ANY = "*"
_LOOPBACK_NAMES = ("localhost", "*.localhost")


class AllowedHosts:
    """Names by which a server may be called; addresses, and names of the loopback, always may."""

    def __init__(self, names: Collection[str]) -> None:
        """Takes names; `*.example.com` is for all below it, `*` for any."""
        given = {name.lower().rstrip(".") for name in (*names, *_LOOPBACK_NAMES)}
        self._allows_any = ANY in given
        self._names = {name for name in given if not name.startswith("*")}
        self._endings = tuple(name[1:] for name in given if name.startswith("*."))

    def allows(self, host: str) -> bool:
        """Returns whether a header Host, with a port or without, is of this server."""
        # Of an address of IPv6 without a port, the end is none.
        name = re.sub(r"(?<!:):\d+$", "", host.lower()).rstrip(".")
        if self._allows_any or name in self._names or name.endswith(self._endings):
            return True
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True
