"""Which steps are captured, replayed and run as they are; the graphs themselves need a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import Mock

import pytest
import torch

from optimist_worker.execution.executor import GraphCache

INPUTS = torch.tensor([1, 2])
CAPTURING: list[Mock] = []
"""The graph that is being captured."""


@contextmanager
def _capture(graph: Mock, pool: int, capture_error_mode: str) -> Iterator[None]:
    # Other threads may wait for events.
    assert capture_error_mode == "thread_local"
    CAPTURING.append(graph)
    try:
        yield
    finally:
        CAPTURING.clear()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> GraphCache:
    pools = iter(range(100))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(torch.cuda, "graph", _capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return GraphCache()


def counting(calls: list[bool]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that notes for each of its runs whether it is captured."""

    def function(inputs: torch.Tensor) -> torch.Tensor:
        calls.append(bool(CAPTURING))
        return inputs + 1

    return function


def test_what_cannot_be_captured_runs_as_it_is(
    cache: GraphCache, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[bool] = []
    plain = counting(calls)

    def waiting(inputs: torch.Tensor) -> torch.Tensor:
        outputs = plain(inputs)
        if calls[-1]:
            raise RuntimeError("operation not permitted when stream is capturing")
        return outputs

    pool = cache._pool
    for number in range(4):
        assert cache.run("key", INPUTS * number, waiting).tolist() == [number + 1, 2 * number + 1]
    assert calls == [False, True, False, False, False]
    assert cache._pool != pool
    assert caplog.text.count("without a CUDA graph: operation not permitted") == 1
    # Others are not affected.
    calls.clear()
    for _ in range(3):
        cache.run("other", INPUTS, plain)
    assert calls == [False, True]
