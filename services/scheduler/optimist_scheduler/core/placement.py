"""Which worker a request goes to: where its beginning is cached, or else where there is room."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from optimist_scheduler.core.scheduler import Scheduler

CHUNK_TOKENS = 64
"""A beginning is known by whole chunks; shorter ones are not worth it."""
MAX_CHUNKS = 4
MAX_BEGINNINGS = 4096
"""Beginnings that are remembered of each worker, the last ones used."""
MOST_EXTRA_LOAD = 0.5
"""Load above the least, in capacities, up to which a cached beginning is worth its worker."""


class Candidate(Protocol):
    """A worker that a request may go to."""

    @property
    def is_connected(self) -> bool:
        """Whether it takes plans."""
        ...

    @property
    def scheduler(self) -> Scheduler:
        """Its requests."""
        ...


C = TypeVar("C", bound=Candidate)


class Placement(Generic[C]):
    """Chooses workers, and remembers which beginnings they have computed.

    A request goes to a worker that is connected, if one is that it fits; there to where it fits
    best, where the queue has room, where most of its beginning is cached, where the load is least.
    """

    def __init__(self) -> None:
        self._beginnings: dict[C, OrderedDict[bytes, None]] = {}
        self._turns: dict[C, int] = {}
        self._num_turns = 0

    def choose(
        self,
        candidates: Sequence[C],
        num_tokens: int,
        wanted_length: int,
        beginning: Sequence[bytes] = (),
    ) -> C:
        """Returns the worker that a request goes to, with so many tokens now and at its end.

        `beginning` is what `hash_beginning` returns.
        """

        def fit(worker: C) -> int:
            longest = worker.scheduler.config.max_length
            return (num_tokens < longest) + (wanted_length <= longest)

        # What fits no worker that is there waits for one that it fits.
        able = [each for each in candidates if fit(each)] or list(candidates)
        able = [each for each in able if each.is_connected] or able
        least = min(map(_find_load, able))

        def rank(worker: C) -> tuple[float, ...]:
            depth, load, scheduler = 0, _find_load(worker), worker.scheduler
            if load <= least + MOST_EXTRA_LOAD:
                depth = self._depth(worker, beginning)
            is_full = scheduler.num_waiting >= scheduler.config.max_num_waiting
            return -fit(worker), is_full, -depth, load, self._turns.get(worker, 0)

        worker = min(able, key=rank)
        self._remember(worker, beginning)
        return worker

    def forget(self, worker: C) -> None:
        """Forgets what a worker has computed: it is gone, or begins anew."""
        self._beginnings.pop(worker, None)
        self._turns.pop(worker, None)

    def _depth(self, worker: C, beginning: Sequence[bytes]) -> int:
        known = self._beginnings.get(worker, ())
        return max((depth for depth, key in enumerate(beginning, 1) if key in known), default=0)

    def _remember(self, worker: C, beginning: Sequence[bytes]) -> None:
        self._num_turns += 1
        self._turns[worker] = self._num_turns
        known = self._beginnings.setdefault(worker, OrderedDict())
        for key in beginning:
            known[key] = None
            known.move_to_end(key)
        while len(known) > MAX_BEGINNINGS:
            known.popitem(last=False)


def _find_load(worker: Candidate) -> float:
    """Returns the requests that run or wait at a worker, in its capacities."""
    scheduler = worker.scheduler
    return (scheduler.num_running + scheduler.num_waiting) / scheduler.config.max_num_seqs


def hash_beginning(prompt_token_ids: Sequence[int], cache_salt: str) -> list[bytes]:
    """Returns hashes of a prompt's first chunks, one, two and so on; none of a short prompt."""
    num_chunks = min(len(prompt_token_ids) // CHUNK_TOKENS, MAX_CHUNKS)
    digest = hashlib.blake2b(cache_salt.encode(), digest_size=16)
    hashes: list[bytes] = []
    for start in range(0, num_chunks * CHUNK_TOKENS, CHUNK_TOKENS):
        chunk = prompt_token_ids[start : start + CHUNK_TOKENS]
        digest.update(np.array(chunk, np.int32).tobytes())
        hashes.append(digest.copy().digest())
    return hashes
