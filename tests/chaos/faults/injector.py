"""Does to a fleet what a schedule says, and remembers when."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tests.chaos.faults.proxy import BLACK_HOLE, HALF_OPEN, UNDISTURBED, Disturbance
from tests.chaos.faults.schedule import Fault, FaultKind
from tests.chaos.services.fleet import Fleet
from tests.chaos.services.network import ProxiedNetwork

_DISTURBANCES: dict[FaultKind, Callable[[float], Disturbance]] = {
    FaultKind.DELAY: lambda amount: Disturbance(delay_seconds=amount),
    FaultKind.JITTER: lambda amount: Disturbance(jitter_seconds=amount),
    FaultKind.DRIP: lambda amount: Disturbance(bytes_per_second=amount),
    FaultKind.RESET: lambda _: UNDISTURBED,
    FaultKind.REFUSE: lambda _: Disturbance(refuses=True),
    FaultKind.BLACK_HOLE: lambda _: BLACK_HOLE,
    FaultKind.HALF_OPEN: lambda amount: HALF_OPEN[amount < 0.5],
}


@dataclass
class Injected:
    """A fault that was done."""

    fault: Fault
    began: float
    """Of the event loop's clock, as `ended`."""
    ended: float = float("inf")
    """When it was over: what was killed is healthy again."""

    def summary(self, origin: float) -> dict[str, object]:
        """Returns it for a report, with times from an origin."""
        return asdict(self.fault) | {
            "began": round(self.began - origin, 2),
            "ended": round(self.ended - origin, 2),
        }


class Injector:
    """Runs schedules of faults."""

    def __init__(self, fleet: Fleet, network: ProxiedNetwork) -> None:
        self.fleet, self.network = fleet, network
        self.injected: list[Injected] = []

    async def run(self, schedule: Sequence[Fault]) -> None:
        """Runs a schedule from now on; returns when all faults are over.

        A fault whose place is not well yet waits for it.
        """
        begin = asyncio.get_running_loop().time()
        places = {fault.place: asyncio.Lock() for fault in schedule}
        async with asyncio.TaskGroup() as tasks:
            for fault in schedule:
                tasks.create_task(self._run_one(fault, begin, places[fault.place]))

    def was_harmed(self, place: str, since: float) -> bool:
        """Tells whether a process was ill at any time since then, or is."""
        return any(one.fault.place == place and one.ended >= since for one in self.injected)

    async def _run_one(self, fault: Fault, begin: float, place: asyncio.Lock) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(begin + fault.begin - loop.time())
        async with place:
            one = Injected(fault, loop.time())
            self.injected.append(one)
            if fault.kind.is_of_process:
                await self._harm(fault)
            else:
                await self._disturb(fault)
            one.ended = loop.time()

    async def _disturb(self, fault: Fault) -> None:
        proxy = self.network.edges[fault.place]
        await proxy.disturb(_DISTURBANCES[fault.kind](fault.amount))
        if fault.kind in (FaultKind.RESET, FaultKind.REFUSE):
            proxy.reset()
        await asyncio.sleep(fault.seconds)
        await proxy.disturb(UNDISTURBED)

    async def _harm(self, fault: Fault) -> None:
        member = self.fleet.members[fault.place]
        if fault.kind is FaultKind.STOP:
            member.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            member.signal(signal.SIGCONT)
            return
        if fault.kind is FaultKind.KILL:
            member.kill()
            await asyncio.sleep(fault.seconds)
        else:
            await asyncio.to_thread(member.stop)
        member.start()
        await asyncio.to_thread(member.wait_until_healthy)
