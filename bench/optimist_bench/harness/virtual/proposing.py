"""Proposers in virtual time, and what the scheduler knows of them: batches out, windows in."""

import itertools
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from optimist_aligner.text.vocabulary import Vocabulary
from optimist_bench.harness.command import ProposerAlgorithm
from optimist_bench.harness.virtual.settings import VirtualSettings
from optimist_bench.harness.virtual.timeline import Cores, Service, Timeline
from optimist_common.drafts import TokenTree
from optimist_proposer.core.live_requests import SentWindow
from optimist_proposer.core.messages import Answer, Observation, Open
from optimist_proposer.following import Following
from optimist_proposer.service import build_following
from optimist_proposer.settings import ProposerSettings
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.windows.window import Window
from optimist_scheduler.proposers.links import MAX_UNANSWERED_BATCHES
from optimist_scheduler.proposers.proposers import find_batch_size

NO_LIMIT_MS = 2**31
"""Of processor time on a request: clocks decide nothing here."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a proposer is sent."""

    number: int
    opens: list[Open] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    closes: list[str] = field(default_factory=list)


class Proposer(Service):
    """One proposer, which answers batches in turn."""

    def __init__(
        self, timeline: Timeline, cores: Cores, settings: VirtualSettings, following: Following
    ) -> None:
        super().__init__(timeline, cores)
        self._settings, self._following = settings, following

    def answer(self, batch: Batch, take_answer: Callable[[Answer], None]) -> None:
        """Does what a batch asks for; the answer is taken when it has come back."""
        answer, costs = Answer(), self._settings
        for request in batch.opens:
            self._following.open(request, answer)
        list(self._following.observe({one.request_id: [one] for one in batch.observations}, answer))
        for request_id in batch.closes:
            self._following.drop(request_id)
        self.spend(
            costs.batch_us
            + costs.opening_us * len(batch.opens)
            + costs.observation_us * len(batch.observations)
        )
        self.send(costs.wire_us, partial(take_answer, answer))


def make_proposer(
    timeline: Timeline,
    cores: Cores,
    settings: VirtualSettings,
    vocabulary: Vocabulary,
    algorithm: ProposerAlgorithm = "auto",
) -> Proposer:
    """Returns a proposer with the limits of the real one, but for its processor time."""
    proposing = ProposerSettings(model="", algorithm=algorithm, max_alignment_ms=NO_LIMIT_MS)
    return Proposer(timeline, cores, settings, build_following(proposing, vocabulary, None))


@dataclass(slots=True, eq=False)
class Link:
    """A proposer as the scheduler sees it."""

    proposer: Proposer
    unanswered: set[int] = field(default_factory=set)
    """Batches that it has not answered."""
    num_requests: int = 0
    """Requests whose last batch went here."""
    is_late: bool = False
    """Whether an answer was waited for in vain and nothing came since."""

    @property
    def takes_batches(self) -> bool:
        """Whether not too many batches wait for an answer."""
        return len(self.unanswered) < MAX_UNANSWERED_BATCHES

    def take_answer(self, batch: int) -> None:
        """Notes that a batch was answered."""
        self.unanswered.remove(batch)
        self.is_late = False


@dataclass(slots=True)
class _Followed:
    opening: Open
    link: Link | None = None
    """Who follows it; None until that is sent the opening."""
    token_ids: list[int] = field(default_factory=list)
    """Output so far, as far as it was observed."""
    num_sent_tokens: int = 0
    batch: int = 0
    """The last batch that names the request."""


class Links:
    """What each request was sent and where, by the rules of the scheduler's `Proposers`.

    Nobody comes or goes and nothing is lost, so there are no gaps to mend.
    """

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        self._links = [Link(proposer) for proposer in proposers]
        self._followed: dict[str, _Followed] = {}
        self._unsent: dict[str, None] = {}
        self._closed: deque[tuple[str, Link]] = deque()
        self._batches = itertools.count(1)

    @property
    def are_late(self) -> bool:
        """Whether none of them is waited for."""
        return all(link.is_late for link in self._links)

    def open(self, new: NewRequest) -> None:
        """Begins to follow a request."""
        predicted, prompt = (
            array("i", each) for each in (new.predicted_token_ids, new.prompt_token_ids)
        )
        opening = Open(new.request_id, [predicted], prompt, "")
        self._followed[new.request_id] = _Followed(opening, token_ids=list(new.output_token_ids))
        self._unsent[new.request_id] = None

    def close(self, request_id: str) -> None:
        """Follows a request no longer, if it is followed."""
        followed = self._followed.pop(request_id, None)
        self._unsent.pop(request_id, None)
        if followed is not None and followed.link is not None:
            followed.link.num_requests -= 1
            self._closed.append((request_id, followed.link))

    def observe(
        self, observed: Sequence[tuple[str, list[int]]], unaligned: Collection[str]
    ) -> None:
        """Takes new tokens by request; those that have nothing to draft from are sent first."""
        ready = [request_id for request_id, _ in observed if request_id in self._followed]
        for request_id, token_ids in observed:
            if request_id in self._followed:
                self._followed[request_id].token_ids += token_ids
        ready.sort(key=lambda request_id: request_id not in unaligned)
        self._unsent.update(dict.fromkeys(ready))

    def make_batches(self) -> Iterator[tuple[Link, Batch]]:
        """Iterates over what is to be sent, as far as it is taken."""
        while routes := self._find_routes():
            for link, request_ids in routes.items():
                yield link, self._make_batch(link, request_ids)

    def _find_routes(self) -> dict[Link, list[str]]:
        routes: dict[Link, list[str]] = {}
        for request_id in self._unsent:
            link = self._followed[request_id].link or self._find_least_loaded()
            if link.takes_batches:
                routes.setdefault(link, []).append(request_id)
        if not routes:
            homes = (
                link for _, link in self._closed if link.takes_batches and not link.num_requests
            )
            routes = {link: [] for link in itertools.islice(homes, 1)}
        return routes

    def _find_least_loaded(self) -> Link:
        return min(self._links, key=lambda link: link.num_requests)

    def _make_batch(self, link: Link, request_ids: list[str]) -> Batch:
        batch = Batch(next(self._batches))
        for request_id in request_ids[: find_batch_size(len(request_ids))]:
            del self._unsent[request_id]
            followed = self._followed[request_id]
            if followed.link is None:
                batch.opens.append(followed.opening)
                link.num_requests += 1
            start = followed.num_sent_tokens
            if token_ids := array("i", followed.token_ids[start:]):
                batch.observations.append(Observation(request_id, start, token_ids))
            followed.num_sent_tokens = len(followed.token_ids)
            followed.link, followed.batch = link, batch.number
        batch.closes.extend(request_id for request_id, home in self._closed if home is link)
        self._closed = deque(each for each in self._closed if each[1] is not link)
        link.unanswered.add(batch.number)
        return batch

    def count_lacking(self, unaligned: Mapping[str, float]) -> float:
        """Returns what those that are followed lose together, see `Scheduler.find_unaligned`."""
        return sum(loss for request_id, loss in unaligned.items() if request_id in self._followed)

    def find_awaited(self, unaligned: Iterable[str]) -> list[Link]:
        """Returns those whose answers are due to requests with nothing to draft from."""
        found = [self._followed[each] for each in unaligned if each in self._followed]
        return [
            link
            for link, batch in ((each.link, each.batch) for each in found)
            if link is not None and batch in link.unanswered and not link.is_late
        ]


def read_window(sent: SentWindow) -> Window:
    """Returns a proposer's window as the scheduler reads it."""
    draft = sent.draft
    token_ids, parents, positions = (
        np.array(column, np.int32) for column in (draft.token_ids, draft.parents, draft.positions)
    )
    tree = TokenTree.from_columns(token_ids, parents)
    return Window(sent.base, tree, positions, np.array(draft.values, np.float32))
