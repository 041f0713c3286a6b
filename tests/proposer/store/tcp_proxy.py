"""A TCP proxy that can turn into a black hole: connections stay, and nothing comes through."""

import asyncio

_CHUNK_BYTES = 1 << 16


class TcpProxy:
    """Forwards connections to its port on the loopback, unless it is cut."""

    def __init__(self, target_port: int) -> None:
        """Listens nowhere yet."""
        self.port = 0
        self._target_port = target_port
        self._forwards = asyncio.Event()
        self._forwards.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Keeps all that is sent from now on, and connections that are opened, until `mend`."""
        self._forwards.clear()

    def mend(self) -> None:
        """Forwards again, what was kept first."""
        self._forwards.set()

    async def stop(self) -> None:
        """Closes everything."""
        if self._server is not None:
            self._server.close()
        self._forwards.set()
        for end in self._ends:
            end.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ends = {writer}
        self._ends.add(writer)
        try:
            await self._forwards.wait()
            source, target = await asyncio.open_connection("127.0.0.1", self._target_port)
            ends.add(target)
            self._ends.add(target)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_on(reader, target))
                ways.create_task(self._pass_on(source, writer))
        except* OSError:
            # Who hangs up at one end is gone at the other too.
            pass
        finally:
            self._ends -= ends
            for end in ends:
                end.close()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK_BYTES):
            await self._forwards.wait()
            target.write(data)
            await target.drain()
        raise ConnectionResetError("the connection has ended")
