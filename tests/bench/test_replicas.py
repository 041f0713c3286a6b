import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from optimist.proposer.v1 import proposer_pb2_grpc
from optimist_bench.replicas.client import FleetClient
from optimist_bench.replicas.command import ReplicasSettings
from optimist_bench.replicas.target import SimulatedRequest
from optimist_common.network.server import GrpcServer
from optimist_common.settings import load_settings
from optimist_proposer.batch import BatchProposer
from optimist_proposer.servicer import ProposerServicer
from tests.proposer.holding import MemoryStore, Replica, following
from tests.proposer.text import tokens

POEM = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"


def request(name: str = "a") -> SimulatedRequest:
    return SimulatedRequest(name, tokens(POEM), tokens(POEM.replace("four", "FOUR")))


@asynccontextmanager
async def serving(proposers: list[BatchProposer]) -> AsyncIterator[list[str]]:
    servers = [GrpcServer("127.0.0.1", 0) for _ in proposers]
    addresses = []
    for server, proposer in zip(servers, proposers, strict=True):
        proposer_pb2_grpc.add_ProposerServiceServicer_to_server(
            ProposerServicer(proposer, 100), server.server
        )
        addresses.append(f"127.0.0.1:{await server.start()}")
    yield addresses
    for server in servers:
        await server.stop()


async def drive(addresses: list[str], target: SimulatedRequest, *, stays: bool) -> FleetClient:
    client = FleetClient(addresses, stays=stays)
    running = asyncio.create_task(client.run())
    for link in client.links:
        await link.opened.wait()
    client.open(target)
    while not target.is_done:
        client.send_step([target])
        await client.wait(10)
        target.run_pass()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return client


async def test_replicas_that_share_nothing_get_what_they_lack() -> None:
    proposers = [BatchProposer(following(window_tokens=8)) for _ in range(3)]
    async with serving(proposers) as addresses:
        alone = request()
        await drive(addresses, alone, stays=True)
        target = request("b")
        client = await drive(addresses, target, stays=False)
    assert target.output == target.truth == alone.output
    assert target.num_passes == alone.num_passes
    # Each replica lacks what the two others got, and the first time the request itself.
    assert client.counts.reopened == 2
    assert client.counts.gaps > 2


async def test_replicas_that_share_a_store_know_what_the_others_got() -> None:
    store = MemoryStore()
    replicas = [Replica(store, following(window_tokens=8)) for _ in range(3)]
    writers = [asyncio.create_task(replica.writer.run()) for replica in replicas]
    async with serving([replica.proposer for replica in replicas]) as addresses:
        target = request()
        client = await drive(addresses, target, stays=False)
    for writer in writers:
        writer.cancel()
    assert target.output == target.truth
    assert client.counts.reopened == 0
    assert store.num_reads > 0


def test_modes_are_compared_to_one_replica() -> None:
    chosen = load_settings(ReplicasSettings, ["--modes", "killed,one"])
    assert chosen.modes == ["one", "killed"]
