"""The scripts of components/redis-sentinel, with real processes on ports of this machine."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimist_cli.serve.ports import free_ports
from tests.deploy.installation import KUBERNETES

SCRIPTS = KUBERNETES / "components" / "redis-sentinel"
NUMBER = 3
_DEADLINE_SECONDS = 60.0

pytestmark = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


class Nodes:
    """Redis and Sentinels, each started by its script as in a pod."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(2 * NUMBER)
        self.redises, self.sentinels = ports[:NUMBER], ports[NUMBER:]
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

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
        self._processes[port] = subprocess.Popen(
            ["sh", str(SCRIPTS / f"start-{kind}.sh")],
            env=os.environ | variables,
            stdout=subprocess.DEVNULL,
        )

    def start_all(self) -> None:
        for port in self.redises:
            self.start("redis", port)
        for port in self.sentinels:
            self.start("sentinel", port)

    def kill(self, port: int) -> None:
        process = self._processes.pop(port)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for port in list(self._processes):
            self.kill(port)

    def ask(self, port: int, *words: str) -> list[str]:
        """Returns the lines of an answer; none if nobody answers."""
        command = ["redis-cli", "-p", str(port), "--raw", *words]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.stdout.splitlines()

    def masters(self) -> list[int]:
        """Returns the ports of Redis that say that they are masters."""
        return [port for port in self._running() if self.ask(port, "role")[:1] == ["master"]]

    def replicas(self) -> list[int]:
        """Returns the ports of those that are connected to their master."""
        return [
            port
            for port in self._running()
            for role in [self.ask(port, "role")]
            if role[:1] == ["slave"] and "connected" in role
        ]

    def known_masters(self) -> set[int]:
        """Returns what the Sentinels say, 0 for one that does not answer."""
        query = ("sentinel", "get-master-addr-by-name", "optimist")
        return {int([*self.ask(port, *query), "0", "0"][1]) for port in self.sentinels}

    def know_each_other(self) -> bool:
        """Whether each Sentinel has heard of the others and of both replicas."""
        return all(
            len([line for line in self.ask(port, "sentinel", what, "optimist") if line == "name"])
            == NUMBER - 1
            for port in self.sentinels
            for what in ("sentinels", "replicas")
        )

    def _running(self) -> list[int]:
        return [port for port in self.redises if port in self._processes]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.3)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    try:
        found.start_all()
        yield found
    finally:
        found.kill_all()


@pytest.mark.slow
def test_another_redis_takes_the_place_of_one_that_ends_and_keeps_it(nodes: Nodes) -> None:
    first, *others = nodes.redises
    wait_for(lambda: sorted(nodes.replicas()) == sorted(others), "two replicas of the first")
    wait_for(nodes.know_each_other, "Sentinels that know each other")
    assert nodes.masters() == [first]
    assert nodes.known_masters() == {first}

    nodes.kill(first)
    wait_for(lambda: len(nodes.masters()) == 1, "a new master")
    (second,) = nodes.masters()
    wait_for(lambda: nodes.known_masters() == {second}, "Sentinels that agree")

    # The pod that comes back is first in the list and nevertheless no master.
    nodes.start("redis", first)
    wait_for(lambda: first in nodes.replicas(), "the old master as a replica")
    wait_for(lambda: nodes.masters() == [second], "one master")

    # A Sentinel that has forgotten all learns who is master now, also without any other.
    for port in nodes.sentinels:
        nodes.kill(port)
    nodes.start("sentinel", nodes.sentinels[0])
    wait_for(lambda: second in nodes.known_masters(), "a Sentinel that asks its way")
