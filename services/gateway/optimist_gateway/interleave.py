"""Reads several generators at the same time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def interleave(
    sources: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Yields what the sources yield as it comes, each item with the number of its source.

    A source is read at most two items ahead. The generator ends with the last source; the first
    error of one is raised here, and all sources are closed.
    """
    arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(1)
    readers = [
        asyncio.create_task(_read(number, source, arrived)) for number, source in enumerate(sources)
    ]
    num_open = len(sources)
    try:
        while num_open:
            one = await arrived.get()
            if isinstance(one, Exception):
                raise one
            if one is None:
                num_open -= 1
            else:
                yield one
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(
    number: int,
    source: AsyncGenerator[T, None],
    arrived: asyncio.Queue[tuple[int, T] | Exception | None],
) -> None:
    """Passes on what a source yields, then its error, or None at its end."""
    try:
        async with aclosing(source):
            async for item in source:
                await arrived.put((number, item))
    except Exception as error:
        await arrived.put(error)
    else:
        await arrived.put(None)
