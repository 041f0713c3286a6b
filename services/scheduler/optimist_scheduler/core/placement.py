"""Which worker a request goes to: where its beginning is cached, or else where there is room."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optimist_scheduler.core.scheduler import Scheduler

CHUNK_TOKENS = 64
"""A beginning is known by whole chunks; shorter ones are not worth it."""
MAX_CHUNKS = 4
MAX_BEGINNINGS = 4096
"""Beginnings that are remembered of each worker, the last ones used."""
MOST_EXTRA_LOAD = 0.5
"""Load above the least, in capacities, up to which a cached beginning is worth its worker."""


class Candidate(NamedTuple):
    """A worker that a request may go to."""

    name: str
    is_connected: bool
    scheduler: Scheduler

    @property
    def load(self) -> float:
        """Requests that run or wait there, in capacities."""
        num_requests = self.scheduler.num_running + self.scheduler.num_waiting
        return num_requests / self.scheduler.config.max_num_seqs

    @property
    def is_full(self) -> bool:
        """Whether as many wait as may."""
        return self.scheduler.num_waiting >= self.scheduler.config.max_num_waiting

    def fit(self, num_tokens: int, wanted_length: int) -> int:
        """Returns how well a request fits: 2 to its end, 1 for some tokens, 0 not at all."""
        longest = self.scheduler.config.max_length
        return (num_tokens < longest) + (wanted_length <= longest)


class Placement:
    """Chooses workers, and remembers which beginnings they have computed.

    A request goes to a worker that is connected, if one is that it fits; there to where it fits
    best, where the queue has room, where most of its beginning is cached, where the load is least.
    """

    def __init__(self) -> None:
        self._beginnings: dict[str, OrderedDict[bytes, None]] = {}
        self._turns: dict[str, int] = {}
        self._num_turns = 0

    def choose(
        self,
        candidates: Sequence[Candidate],
        num_tokens: int,
        wanted_length: int,
        beginning: Sequence[bytes] = (),
    ) -> str:
        """Returns the worker that a request goes to, with so many tokens now and at its end.

        `beginning` is what `hash_beginning` returns.
        """
        # What fits no worker that is there waits for one that it fits.
        able = [each for each in candidates if each.fit(num_tokens, wanted_length)] or list(
            candidates
        )
        able = [each for each in able if each.is_connected] or able
        least = min(each.load for each in able)

        def rank(candidate: Candidate) -> tuple[float, ...]:
            depth = 0
            if candidate.load <= least + MOST_EXTRA_LOAD:
                depth = self._depth(candidate.name, beginning)
            return (
                -candidate.fit(num_tokens, wanted_length),
                candidate.is_full,
                -depth,
                candidate.load,
                self._turns.get(candidate.name, 0),
            )

        name = min(able, key=rank).name
        self._remember(name, beginning)
        return name

    def forget(self, name: str) -> None:
        """Forgets what a worker has computed: it is gone, or begins anew."""
        self._beginnings.pop(name, None)
        self._turns.pop(name, None)

    def _depth(self, name: str, beginning: Sequence[bytes]) -> int:
        known = self._beginnings.get(name, ())
        return max((depth for depth, key in enumerate(beginning, 1) if key in known), default=0)

    def _remember(self, name: str, beginning: Sequence[bytes]) -> None:
        self._num_turns += 1
        self._turns[name] = self._num_turns
        known = self._beginnings.setdefault(name, OrderedDict())
        for key in beginning:
            known[key] = None
            known.move_to_end(key)
        while len(known) > MAX_BEGINNINGS:
            known.popitem(last=False)


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
