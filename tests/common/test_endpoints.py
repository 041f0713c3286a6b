"""Which peers a setting stands for, and how that is followed."""

import asyncio
from collections.abc import Sequence

import pytest

from optimist_common.network import endpoints
from optimist_common.network.endpoints import Change, Endpoints, Peer, PeerSet, split_address
from optimist_common.settings import ServiceSettings


class PeerSettings(ServiceSettings):
    """A service with peers."""

    section = "test"
    peers: endpoints.Addresses


def test_peers_are_the_addresses_that_a_name_had_last() -> None:
    peers = PeerSet("worker:50052")
    one, two, three = (Peer(f"10.0.0.{number}:50052", "worker") for number in (1, 2, 3))
    assert not peers.peers
    assert peers.update(["10.0.0.2", "10.0.0.1"]) == Change(appeared=(one, two))
    assert peers.update(["10.0.0.1"]) == Change(vanished=(two,))
    assert peers.update(["10.0.0.3"]) == Change(appeared=(three,), vanished=(one,))
    # A name that is not resolved keeps its peers.
    assert not peers.update([])
    assert peers.peers == (three,)


@pytest.mark.parametrize("address", ["host", ":5", "host:0", "host:65536", "::1:5"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"must be host:port|in brackets"):
        split_address(address)


def test_a_setting_is_a_list_with_commas() -> None:
    assert PeerSettings(peers="a:1, b:2").peers == ["a:1", "b:2"]
    with pytest.raises(ValueError, match="must not name one twice"):
        PeerSettings(peers="a:1,a:1")
    with pytest.raises(ValueError, match="must be host:port"):
        PeerSettings(peers="a:1,b")


async def test_names_are_looked_up_again_and_again_and_hold_up_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "RESOLVE_SECONDS", 0.0)
    addresses: dict[str, list[str]] = {}
    asked, changes = asyncio.Queue[str](), asyncio.Queue[Change]()

    async def resolve(host: str) -> Sequence[str]:
        if host == "slow":
            await asyncio.Event().wait()
        asked.put_nowait(host)
        if host not in addresses:
            raise OSError("no such name")
        return addresses[host]

    assert "127.0.0.1" in await endpoints.resolve_host("localhost")
    followed = Endpoints(["slow:1", "a:1", "[::1]:2"], resolve)
    assert [peer.target for peer in followed.peers] == ["[::1]:2"]
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(followed.run(changes.put_nowait))
        assert await asked.get() == "a"
        addresses["a"] = ["10.0.0.1", "10.0.0.2"]
        appeared = [peer.target for peer in (await changes.get()).appeared]
        assert appeared == ["10.0.0.1:1", "10.0.0.2:1"]
        assert [peer.target for peer in followed.peers] == [*appeared, "[::1]:2"]
        addresses["a"] = ["10.0.0.2"]
        assert (await changes.get()).vanished == (Peer("10.0.0.1:1", "a"),)
        following.cancel()
