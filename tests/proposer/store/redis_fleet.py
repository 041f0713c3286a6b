"""Several real Redis servers together: with a Sentinel, and as a cluster."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from optimist_bench.replicas.redis_server import RedisServer
from tests.stack import free_port, wait_until

SERVICE = "mymaster"
PASSWORD = "secret"
NUM_SLOTS = 16384


@dataclass(frozen=True)
class Watched:
    """A master, its replica, and the Sentinel that watches them."""

    master: RedisServer
    replica: RedisServer
    sentinel: RedisServer

    @property
    def url(self) -> str:
        return f"redis+sentinel://:{PASSWORD}@{self.sentinel.address}/{SERVICE}/0"


@contextmanager
def watched(directory: Path) -> Iterator[Watched]:
    """Runs a master with a password, a replica and a Sentinel that is quick to fail over."""
    password = ("--requirepass", PASSWORD, "--masterauth", PASSWORD)
    with ExitStack() as stack:
        master = _start(stack, directory / "master", *password)
        replica = _start(
            stack, directory / "replica", *password, "--replicaof", f"127.0.0.1 {master.port}"
        )
        with Redis(port=replica.port, password=PASSWORD) as client:
            wait_until(lambda: client.info()["master_link_status"] == "up", "a replica")
        configuration = directory / "sentinel.conf"
        configuration.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 1\n"
            f"sentinel auth-pass {SERVICE} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {SERVICE} 300\n"
            f"sentinel failover-timeout {SERVICE} 3000\n",
            encoding="utf-8",
        )
        sentinel = _start(stack, directory / "sentinel", str(configuration), "--sentinel")
        with Redis(port=sentinel.port) as client:
            wait_until(lambda: client.sentinel_master(SERVICE)["num-slaves"] == 1, "a Sentinel")
        yield Watched(master, replica, sentinel)


@contextmanager
def cluster(directory: Path, num_nodes: int = 3) -> Iterator[list[RedisServer]]:
    """Runs a cluster of masters that goes on serving while one is away."""
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    with ExitStack() as stack:
        nodes = [
            _start(stack, directory / f"node{n}", *options, "--cluster-port", str(free_port()))
            for n in range(num_nodes)
        ]
        clients = [stack.enter_context(Redis(port=node.port)) for node in nodes]
        for number, client in enumerate(clients):
            first, end = (NUM_SLOTS * n // num_nodes for n in (number, number + 1))
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
            bus = client.config_get("cluster-port")["cluster-port"]
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", nodes[number].port, bus)
        wait_until(lambda: {*map(_num_masters, clients)} == {num_nodes}, "a cluster")
        yield nodes


def cluster_url(nodes: list[RedisServer]) -> str:
    return f"redis+cluster://{','.join(node.address for node in nodes)}"


def _num_masters(client: "Redis") -> int:
    """Returns how many masters a node knows to serve all slots together; 0 if not all."""
    info = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    if info["cluster_state"] != "ok" or int(info["cluster_slots_ok"]) != NUM_SLOTS:
        return 0
    return int(info["cluster_size"])


def _start(stack: ExitStack, directory: Path, *arguments: str) -> RedisServer:
    directory.mkdir()
    return stack.enter_context(RedisServer(directory, *arguments))
