"""A model that the gateway serves."""

import asyncio
from dataclasses import dataclass

from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import SchedulerUnavailableError
from optimist_gateway.structure.grammars import Grammars
from optimist_gateway.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ServedModel:
    """One model, and all that is its own."""

    name: str
    """Its name in the API."""
    tokenizer: Tokenizer
    grammars: Grammars
    schedulers: SchedulerPool

    def unready_reason(self) -> str | None:
        """Returns why its requests cannot be served now, or None if they can: by one scheduler."""
        try:
            self.schedulers.description  # noqa: B018 (it raises)
        except SchedulerUnavailableError as error:
            return str(error)
        return "the engine hangs" if self.schedulers.is_hung else self.tokenizer.unready_reason

    async def run(self) -> None:
        """Starts its process and follows its schedulers; returns never."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.tokenizer.start())
            tasks.create_task(self.schedulers.run())

    async def stop(self) -> None:
        """Ends its processes."""
        await self.grammars.stop()
        await self.tokenizer.stop()
