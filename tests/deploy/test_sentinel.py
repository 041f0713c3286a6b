"""The scripts of components/redis-sentinel, with real processes on ports of this machine."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, RedisError

from optimist_cli.serve.ports import free_ports
from tests.deploy.installation import KUBERNETES
from tests.stack import wait_until

SCRIPTS = KUBERNETES / "components" / "redis-sentinel"
NUMBER = 3

pytestmark = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


class Nodes:
    """Redis and Sentinels, each started by its script as in a pod."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(2 * NUMBER)
        self.redises, self.sentinels = ports[:NUMBER], ports[NUMBER:]
        self._directory = directory
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, kind: str, port: int) -> None:
        home = self._directory / str(port)
        # A pod that starts again has lost what was in its volume.
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        variables = {
            "SELF": f"127.0.0.1:{port}",
            "SERVICE": "optimist",
            "DIRECTORY": str(home),
            "REDISES": " ".join(f"127.0.0.1:{one}" for one in self.redises),
            "SENTINELS": " ".join(f"127.0.0.1:{one}" for one in self.sentinels),
            # A machine with other work may stop a process for a second.
            "DOWN_AFTER_MS": "3000",
            "FAILOVER_TIMEOUT_MS": "6000",
        }
        self.running[port] = subprocess.Popen(
            ["sh", str(SCRIPTS / f"start-{kind}.sh")],
            env=os.environ | variables,
            stdout=subprocess.DEVNULL,
        )

    def kill(self, port: int) -> None:
        process = self.running.pop(port)
        process.kill()
        process.wait()

    def ask(self, port: int, *words: str) -> Any:
        """Returns an answer as Redis words it; an empty one if nobody answers."""
        try:
            with Redis(port=port, decode_responses=True) as client:
                client.response_callbacks.clear()
                return client.execute_command(*words) or []
        except RedisError:
            return []

    def masters(self) -> list[int]:
        """Returns the ports of Redis that say that they are masters."""
        return [port for port in self.redises if self.ask(port, "role")[:1] == ["master"]]

    def replicas(self) -> list[int]:
        """Returns the ports of those that are connected to their master."""
        roles = {port: self.ask(port, "role") for port in self.redises}
        return [port for port, role in roles.items() if "slave" in role and "connected" in role]

    def known_masters(self) -> set[int]:
        """Returns what the Sentinels say, 0 for one that does not answer."""
        query = ("sentinel", "get-master-addr-by-name", "optimist")
        return {int([*self.ask(port, *query), "0", "0"][1]) for port in self.sentinels}

    def know_each_other(self) -> bool:
        """Whether each Sentinel has heard of the others and of both replicas."""
        return all(
            len(self.ask(port, "sentinel", what, "optimist")) == NUMBER - 1
            for port in self.sentinels
            for what in ("sentinels", "replicas")
        )


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    try:
        for port in found.redises:
            found.start("redis", port)
        for port in found.sentinels:
            found.start("sentinel", port)
        yield found
    finally:
        for port in [*found.running]:
            found.kill(port)


@pytest.mark.slow
def test_another_redis_takes_the_place_of_one_that_ends_and_keeps_it(nodes: Nodes) -> None:
    first, *others = nodes.redises
    wait_until(lambda: sorted(nodes.replicas()) == sorted(others), "two replicas of the first")
    wait_until(nodes.know_each_other, "Sentinels that know each other")
    assert nodes.masters() == [first]
    assert nodes.known_masters() == {first}

    nodes.kill(first)
    wait_until(lambda: len(nodes.masters()) == 1, "a new master")
    (second,) = nodes.masters()
    wait_until(lambda: nodes.known_masters() == {second}, "Sentinels that agree")

    # The pod that comes back is first in the list and nevertheless no master.
    nodes.start("redis", first)
    wait_until(lambda: first in nodes.replicas(), "the old master as a replica")
    wait_until(lambda: nodes.masters() == [second], "one master")

    # A Sentinel that has forgotten all learns who is master now, also without any other.
    for port in nodes.sentinels:
        nodes.kill(port)
    nodes.start("sentinel", nodes.sentinels[0])
    wait_until(lambda: second in nodes.known_masters(), "a Sentinel that asks its way")
