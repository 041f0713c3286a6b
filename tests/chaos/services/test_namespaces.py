"""Pairs of hosts that are cut and healed, with plain sockets."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from tests.chaos.services.namespaces import Namespaces, missing_for_namespaces

REASON = missing_for_namespaces()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

# Connects and tells whether it was answered in time.
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5)"
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    server.accept()
"""


@pytest.fixture
async def hosts() -> AsyncIterator[Namespaces]:
    namespaces = Namespaces()
    try:
        yield namespaces
    finally:
        await namespaces.close()


async def test_a_pair_is_cut_and_healed_and_others_are_not(hosts: Namespaces) -> None:
    server = hosts.place("server")
    for client in ("one", "two"):
        hosts.place(client)

    def reaches(client: str) -> bool:
        words = [sys.executable, "-c", CONNECT, *map(str, server)]
        done = subprocess.run(hosts.command(client, words), capture_output=True)
        return done.returncode == 0

    words = [sys.executable, "-c", LISTEN, *map(str, server)]
    command = hosts.command("server", words)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as listening:  # noqa: ASYNC220
        assert listening.stdout is not None
        assert listening.stdout.readline() == b"ready\n"
        assert reaches("one")
        hosts.cut("one", ["server"])
        assert not reaches("one")
        assert reaches("two")
        hosts.heal("one", ["server"])
        assert reaches("one")
        # Whoever runs the tests reaches all.
        _, writer = await asyncio.open_connection(*server)
        writer.close()
        listening.kill()
