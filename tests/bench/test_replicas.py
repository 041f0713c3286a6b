import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist_bench.replicas.client import FleetClient
from optimist_bench.replicas.command import ReplicasSettings
from optimist_bench.replicas.target import SimulatedRequest, Window
from optimist_common.columns import to_bytes
from optimist_common.network.server import GrpcServer
from optimist_common.settings import load_settings
from optimist_proposer.batch import BatchProposer
from optimist_proposer.servicer import ProposerServicer
from tests.proposer.holding import MemoryStore, Replica, following
from tests.proposer.text import tokens

POEM = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"


def request(predicted: str = POEM, truth: str = POEM, name: str = "a") -> SimulatedRequest:
    return SimulatedRequest(name, tokens(predicted), tokens(truth))


def window(base: int, text: str, parents: list[int]) -> Window:
    message = proposer_pb2.Window(
        base=base, token_ids=to_bytes(list(map(ord, text))), parents=to_bytes(parents)
    )
    return Window.read(message)


def test_pass_accepts_the_longest_path_and_adds_a_token() -> None:
    target = request(truth="abcdef")
    # a-b-x and a-b-c-d, the wrong branch first.
    target.take_window(window(0, "abxcd", [-1, 0, 1, 1, 3]))
    target.run_pass()
    assert target.output == tokens("abcde")
    assert target.num_passes == 1
    target.run_pass()
    assert target.is_done
    assert target.output == target.truth


def test_only_what_is_behind_the_output_is_drafted() -> None:
    tree = window(2, "abxyb", [-1, 0, -1, 2, 2])
    assert tree.draft(tokens("..a")) == [1]
    assert tree.draft(tokens("..x")) == [3, 4]
    assert tree.draft(tokens("..z")) == []
    assert tree.draft(tokens("..")) == [0, 1, 2, 3, 4]


def test_older_window_replaces_no_newer() -> None:
    target = request()
    for base in (4, 2, 4):
        target.take_window(window(base, "a", []))
    assert target.window.base == 4


@asynccontextmanager
async def serving(proposers: list[BatchProposer]) -> AsyncIterator[list[str]]:
    servers = [GrpcServer("127.0.0.1", 0) for _ in proposers]
    addresses = []
    for server, proposer in zip(servers, proposers, strict=True):
        proposer_pb2_grpc.add_ProposerServiceServicer_to_server(
            ProposerServicer(proposer, 100, 128), server.server
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
        alone = request(truth=POEM.replace("four", "FOUR"))
        await drive(addresses, alone, stays=True)
        target = request(truth=POEM.replace("four", "FOUR"), name="b")
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
        target = request(truth=POEM.replace("four", "FOUR"))
        client = await drive(addresses, target, stays=False)
    for writer in writers:
        writer.cancel()
    assert target.output == target.truth
    assert client.counts.reopened == 0
    assert store.num_reads > 0


def test_modes_are_compared_to_one_replica() -> None:
    chosen = load_settings(ReplicasSettings, ["--modes", "killed,one"])
    assert chosen.modes == ["one", "killed"]
