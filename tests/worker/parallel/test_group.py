"""How ranks find each other."""

import threading
from typing import Any

import pytest

from optimist_common.errors import SetupError
from optimist_worker.execution import group
from optimist_worker.execution.group import Group
from optimist_worker.execution.ranks import LOOPBACK, Ranks
from tests.stack import free_port

SHORT_SECONDS = 0.1


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ranks that have begun to join, which PyTorch gives little time for."""
    ranks: list[int] = []

    def init_process_group(*_: Any, rank: int, **__: Any) -> None:
        ranks.append(rank)

    monkeypatch.setattr("torch.distributed.init_process_group", init_process_group)
    monkeypatch.setattr("torch.distributed.new_group", lambda **_: None)
    return ranks


def pair() -> list[Ranks]:
    port = free_port()
    return [Ranks(rank, 2, rank, 2, LOOPBACK, port) for rank in range(2)]


def test_ranks_wait_for_those_that_start_later_before_they_join(joined: list[int]) -> None:
    # The first one's holds the store for as long as it is there.
    groups: list[Group] = []

    def join(ranks: Ranks) -> None:
        groups.append(Group(ranks, "cpu", SHORT_SECONDS))

    first, second = pair()
    waiting = threading.Thread(target=join, args=(first,))
    waiting.start()
    waiting.join(4 * SHORT_SECONDS)
    assert joined == []
    join(second)
    waiting.join(20)
    assert sorted(joined) == [0, 1]


def test_ranks_do_not_wait_for_ever(joined: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "JOIN_SECONDS", SHORT_SECONDS)
    with pytest.raises(SetupError, match=r"cannot join the other ranks at 127\.0\.0\.1:"):
        Group(pair()[0], "cpu", 60.0)
    assert joined == []
