"""The servers of a fuzz: one without drafts and with room, and ones with drafts and without."""

import asyncio
import random
from dataclasses import dataclass

from tests.chaos.services.fleet import Fleet, Shape
from tests.integration.matrix.sources import SOURCES
from tests.stack import read_totals, wait_until

REQUESTS_PER_SERVER = 96
AT_ONCE = 16
_SIZES = ("--max-num-seqs", "16", "--max-num-batched-tokens", "144")
# Every request fits, and few beside it.
_BLOCKS, _TIGHT_BLOCKS = "76", "44"
_PLAIN = ("--max-plans-in-flight", "1", "--no-enable-optimistic-scheduling")
_SCHEDULES: tuple[tuple[str, ...], ...] = (
    (),
    _PLAIN,
    ("--max-plans-in-flight", "3", "--draft-width", "goodput"),
    ("--max-plans-in-flight", "1", "--num-speculative-tokens", "8"),
    ("--num-pipeline-stages", "2"),
    ("--policy", "priority", "--draft-width", "fixed", "--num-speculative-tokens", "16"),
    ("--proposer-wait", "always", "--follow", "predictions"),
)
_WITHOUT_WEIGHTS = ("none", "ngram")
_OF_ONE_MODEL = (*_WITHOUT_WEIGHTS, "quantised tree")
# Its text for a seed depends on what was drafted.
_NOT_EXACT = ("eagle by rejection",)


@dataclass(frozen=True)
class Server:
    """How a server is started."""

    worker: tuple[str, ...]
    scheduler: tuple[str, ...]

    def __str__(self) -> str:
        return f"worker {' '.join(self.worker)}; scheduler {' '.join(self.scheduler)}"

    def shape(self, model: str, dtype: str) -> Shape:
        """Returns one of each service, with two proposers."""
        options = {"worker": self.worker, "scheduler": self.scheduler}
        return Shape(1, (1,), 2, dtype=dtype, model=model, options=options)


def reference_shape(model: str, dtype: str) -> Shape:
    """Returns what answers without drafts: no proposer, no drafter, nothing ahead."""
    options = {"worker": ("--drafter", "none"), "scheduler": _PLAIN}
    return Shape(1, (1,), 0, dtype=dtype, model=model, options=options)


def is_tight(number: int) -> bool:
    """Tells whether request `number` meets a server that preempts, and where no long one fits."""
    return number // REQUESTS_PER_SERVER % 2 == 0


def draw_server(seed: int, number: int, *, has_heads: bool, is_recurrent: bool = False) -> Server:
    """Returns the server that request `number` of a seed meets, and its neighbours.

    `has_heads` allows drafters with weights of their own; beside a recurrent model none has any.
    """
    rng = random.Random(f"server {seed} {number // REQUESTS_PER_SERVER}")
    exact = [name for name in SOURCES if name not in _NOT_EXACT]
    others = _WITHOUT_WEIGHTS if is_recurrent else _OF_ONE_MODEL
    source = rng.choice(exact if has_heads else others)
    is_caching = ("--enable-prefix-caching", rng.choice(["true", "true", "false"]))
    memory = ("--num-kv-blocks", _TIGHT_BLOCKS if is_tight(number) else _BLOCKS)
    return Server((*SOURCES[source], *_SIZES, *memory), (*rng.choice(_SCHEDULES), *is_caching))


_REQUESTS = ("requests_running", "requests_waiting")
_FREE_BLOCKS, _ALL_BLOCKS = "kv_cache_free_blocks", "kv_cache_blocks"


async def leftovers(fleet: Fleet) -> list[str]:
    """Waits until a scheduler has nothing more to do; names what it keeps, and a lost worker."""
    (scheduler,) = fleet.named("scheduler")
    prefix = "optimist_scheduler_"

    def read() -> dict[str, float]:
        totals = read_totals(scheduler.metrics_url)
        return {name.removeprefix(prefix): value for name, value in totals.items()}

    def is_empty() -> bool:
        now = read()
        return not sum(now[name] for name in _REQUESTS) and now[_FREE_BLOCKS] == now[_ALL_BLOCKS]

    found = []
    try:
        await asyncio.to_thread(wait_until, is_empty, "an empty scheduler", 30.0)
    except AssertionError:
        now = read()
        names = (*_REQUESTS, _FREE_BLOCKS, _ALL_BLOCKS)
        found.append("left over: " + ", ".join(f"{name} {now[name]:g}" for name in names))
    if losses := read()["worker_losses_total"]:
        found.append(f"a worker was lost {losses:g} times")
    return found
