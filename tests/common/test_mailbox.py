"""A reader gets each item once, in order, until the mailbox is closed."""

import asyncio

from optimist_common.network.mailbox import Mailbox


async def read(box: Mailbox[int]) -> list[int]:
    return [item async for item in box.items()]


async def test_items_come_in_order_whether_they_are_waited_for_or_not() -> None:
    box: Mailbox[int] = Mailbox()
    box.put(1)
    reader = asyncio.create_task(read(box))
    await asyncio.sleep(0)
    for item in (2, 3):
        box.put(item)
    await asyncio.sleep(0)
    assert len(box) == 0
    box.put(4)
    box.close()
    assert await reader == [1, 2, 3, 4]


async def test_a_reader_may_be_cancelled_and_another_goes_on() -> None:
    box: Mailbox[int] = Mailbox()
    reader = asyncio.create_task(read(box))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    box.put(1)
    box.close()
    assert await read(box) == [1]
