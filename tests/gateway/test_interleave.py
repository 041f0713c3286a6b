"""Generators that are read at the same time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_gateway.interleave import interleave


class Source:
    """Yields numbers, each after so many turns of the loop; remembers what became of it."""

    def __init__(self, delays: list[int], error: Exception | None = None) -> None:
        self.delays = delays
        self.error = error
        self.num_read = 0
        self.is_closed = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number, delay in enumerate(self.delays):
                for _ in range(delay):
                    await asyncio.sleep(0)
                self.num_read += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5))
async def test_every_item_comes_once_in_the_order_of_its_source(delays: list[list[int]]) -> None:
    sources = [Source(one) for one in delays]
    got = [pair async for pair in interleave([source.items() for source in sources])]
    for index, one in enumerate(delays):
        assert [item for number, item in got if number == index] == list(range(len(one)))
    assert len(got) == sum(map(len, delays))
    assert all(source.is_closed for source in sources)


async def test_a_slow_source_holds_nobody_up() -> None:
    never = asyncio.Event()

    async def slow() -> AsyncGenerator[int, None]:
        await never.wait()
        yield -1

    quick = Source([1] * 20)
    async with aclosing(interleave([slow(), quick.items()])) as arriving:
        for number in range(20):
            assert await anext(arriving) == (1, number)


@pytest.mark.parametrize("num_others", [0, 3])
async def test_an_error_ends_all(num_others: int) -> None:
    sources = [Source([0, 1], ValueError("wrong"))]
    sources += [Source([1] * 1000) for _ in range(num_others)]
    got = []

    async def read() -> None:
        async for pair in interleave([source.items() for source in sources]):
            got.append(pair)

    with pytest.raises(ValueError, match="wrong"):
        await read()
    assert [item for number, item in got if number == 0] == [0, 1]
    assert all(source.is_closed for source in sources)


@pytest.mark.parametrize("num_sources", [1, 4])
async def test_closing_it_closes_the_sources_which_are_read_little_ahead(num_sources: int) -> None:
    sources = [Source([0] * 1000) for _ in range(num_sources)]
    async with aclosing(interleave([source.items() for source in sources])) as arriving:
        await anext(arriving)
        for _ in range(50):
            await asyncio.sleep(0)
    assert all(source.is_closed for source in sources)
    assert sum(source.num_read for source in sources) <= 2 * num_sources + 1
