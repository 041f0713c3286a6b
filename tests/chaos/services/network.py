"""Between services: the loopback, as it is or with a fault proxy on every edge."""

from tests.chaos.faults.proxy import FaultProxy
from tests.chaos.faults.schedule import CONNECTION_SIGN
from tests.stack import free_port


class Network:
    """Where services run, and how one reaches another: all on the loopback, nothing between."""

    def place(self, name: str) -> tuple[str, int]:
        """Returns the host and port on which a service is to listen."""
        return "127.0.0.1", free_port()

    def command(self, name: str, command: list[str]) -> list[str]:
        """Returns the command line that runs a command where the service is."""
        return command

    async def connect(self, client: str, server: str, address: str) -> str:
        """Returns host:port at which a client is to reach a server."""
        return address

    async def close(self) -> None:
        """Takes everything down."""


class ProxiedNetwork(Network):
    """All services on the loopback; each edge has a proxy of its own."""

    def __init__(self, seed: int = 0) -> None:
        """Begins without edges; `seed` is that of the proxies' jitter."""
        self.edges: dict[str, FaultProxy] = {}
        self._seed = seed

    async def connect(self, client: str, server: str, address: str) -> str:
        """See `Network`."""
        host, port = address.split(":")
        proxy = FaultProxy((host, int(port)), self._seed + len(self.edges))
        await proxy.start()
        self.edges[f"{client}{CONNECTION_SIGN}{server}"] = proxy
        return f"127.0.0.1:{proxy.port}"

    async def close(self) -> None:
        """See `Network`."""
        for proxy in self.edges.values():
            await proxy.stop()
