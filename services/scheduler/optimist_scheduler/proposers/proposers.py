"""What the proposers know of the requests, and what they say about them."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial

from optimist.proposer.v1 import proposer_pb2
from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import INT32_BYTES, from_bytes
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.observing import metrics
from optimist_scheduler.proposers.links import Followed, ProposerLink, ProposerLinks
from optimist_scheduler.proposers.waits import WindowWaits
from optimist_scheduler.settings import SchedulerSettings

logger = logging.getLogger(__name__)

MAX_BATCH_REQUESTS = 1024
FEW_BATCH_REQUESTS = 64
"""Of fewer no batch is made for its own sake: a message costs each side as much as some windows."""
MANY_BATCHES = 8
"""A step's requests go in that many batches or some more, so that the first answers come early."""
MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_WAITING_CLOSES = 4096

OnWindows = Callable[[Sequence[proposer_pb2.Window]], Sequence[bool | ValueError]]
FindUnaligned = Callable[[], dict[str, float]]


def find_batch_size(num_requests: int) -> int:
    """Returns how many requests go in the next batch, of those that are to be sent."""
    size = max(FEW_BATCH_REQUESTS, -(-num_requests // MANY_BATCHES))
    return min(size, MAX_BATCH_REQUESTS)


class Proposers:
    """Opens, observes and closes requests at any number of proposers.

    A request stays with the proposer that opened it, as long as that is there. Nothing here is
    needed for a request to go on: what cannot be sent is sent later or not at all, and a proposer
    that lost track of a request is sent its output again.
    """

    def __init__(
        self, settings: SchedulerSettings, on_windows: OnWindows, find_unaligned: FindUnaligned
    ) -> None:
        addresses = settings.proposers if settings.num_speculative_tokens else []
        self._links = ProposerLinks(
            addresses, settings.tls(), self._take_response, self._note_change
        )
        self.waits = WindowWaits(
            settings.proposer_wait_ms / 1000, pays_always=settings.proposer_wait == "always"
        )
        """What steps wait for them, and what that has cost."""
        self._num_prompt_tokens = settings.proposer_prompt_tokens
        self._follows_all = settings.follow == "all"
        self._on_windows, self._find_unaligned = on_windows, find_unaligned
        self._followed: dict[str, Followed] = {}
        self._unsent: dict[str, None] = {}
        self._closed: dict[str, ProposerLink] = {}
        """Requests that have ended, with who is still to know."""
        self._batches = itertools.count(1)
        self._flush_handle: asyncio.Handle | None = None

    async def run(self) -> None:
        """Keeps all links connected for ever, to those that the names resolve to."""
        await self._links.run()

    def follows(self, new: NewRequest) -> bool:
        """Returns whether a new request is to be followed: if drafts for it can come.

        One with a prediction is worth it even if the proposers are only on their way.
        """
        if not self._links or new.max_draft_tokens == 0:
            return False
        if new.predicted_token_ids:
            return True
        return self._follows_all and any(link.is_open for link in self._links)

    def open(self, add: scheduler_pb2.Add, trace_parent: str = "") -> None:
        """Begins to follow a request that was added."""
        # A long prompt is passed on as it came: lists of its tokens would hold up the steps.
        prompt = memoryview(add.prompt_token_ids)[-INT32_BYTES * self._num_prompt_tokens :]
        opening = proposer_pb2.Open(
            request_id=add.request_id,
            predicted_token_ids=add.predicted_token_ids,
            num_predicted_tokens=add.num_predicted_tokens,
            prompt_token_ids=bytes(prompt) if self._num_prompt_tokens else b"",
            tenant=add.cache_salt,
            trace_parent=trace_parent,
        )
        output = from_bytes(add.output_token_ids).tolist()
        self._followed[add.request_id] = Followed(opening, output)
        self._unsent[add.request_id] = None
        self._flush_soon()

    def close(self, request_id: str) -> None:
        """Follows a request no longer."""
        followed = self._forget(request_id)
        if followed is None or followed.link is None:
            return
        if len(self._closed) >= MAX_WAITING_CLOSES:
            del self._closed[next(iter(self._closed))]
        self._closed[request_id] = followed.link
        self._flush_soon()

    def _forget(self, request_id: str) -> Followed | None:
        followed = self._followed.pop(request_id, None)
        if followed is not None:
            self._unsent.pop(request_id, None)
            if followed.link is not None:
                followed.link.num_requests -= 1
        return followed

    def observe(self, observed: Sequence[tuple[str, list[int]]]) -> None:
        """Sends new tokens, by request id, of the requests that are followed.

        Those that would have to go on without drafts come first.
        """
        # Of nobody there is nothing to look for.
        unaligned = set(self._find_unaligned()) if self._followed else set()
        ready: list[str] = []
        for request_id, token_ids in observed:
            followed = self._followed.get(request_id)
            if followed is not None and followed.take(token_ids):
                ready.append(request_id)
        ready.sort(key=lambda request_id: request_id not in unaligned)
        self._unsent.update(dict.fromkeys(ready))
        self._flush()

    def is_worth_a_wait(
        self,
        find_unaligned: FindUnaligned,
        num_running: int,
        pass_seconds: float,
        slack_seconds: float,
    ) -> bool:
        """Returns whether requests lack windows that answers could bring in time."""
        if not self._followed or all(link.is_late or not link.is_open for link in self._links):
            return False
        unaligned = find_unaligned().items()
        num_lacking = sum(loss for request_id, loss in unaligned if request_id in self._followed)
        return self.waits.pays(num_lacking, num_running, pass_seconds, slack_seconds)

    async def wait_for_windows(
        self, find_unaligned: FindUnaligned, slack_seconds: float, is_idle: Callable[[], bool]
    ) -> None:
        """Waits, for a bounded time, while a request without a window has an unanswered batch."""
        find_awaited = partial(self._find_awaited, find_unaligned)
        if find_awaited():
            for link in await self.waits.wait(find_awaited, slack_seconds, is_idle):
                # Not waited for again before it answers anything.
                link.is_late = True

    def _find_awaited(self, find_unaligned: FindUnaligned) -> list[ProposerLink]:
        links: list[ProposerLink] = []
        for request_id in find_unaligned():
            followed = self._followed.get(request_id)
            if followed and followed.link and followed.link.is_awaited(followed.batch):
                links.append(followed.link)
        return links

    def _note_change(self, link: ProposerLink) -> None:
        """Lets those move on whose proposer takes no requests any more, or does not answer."""
        self.waits.note_answer()
        if self._links.has_willing:
            for each in self._links if link.is_willing else (link,):
                if not each.is_willing:
                    self._move_on(each)
        self._flush_soon()

    def _move_on(self, link: ProposerLink) -> None:
        """Has the requests of a proposer opened at others."""
        for request_id, followed in self._followed.items():
            if followed.link is link:
                followed.begin_anew()
                self._unsent[request_id] = None

    def _flush_soon(self) -> None:
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Sends all that is unsent, as far as links take it."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        while routes := self._find_routes():
            for link, request_ids in routes.items():
                link.send(*self._build_batch(link, request_ids))

    def _find_routes(self) -> dict[ProposerLink, list[str]]:
        """Returns which requests go to which proposer; some get only what ended."""
        routes: dict[ProposerLink, list[str]] = {}
        for request_id in self._unsent:
            link = self._find_home(request_id)
            if link is not None and link.takes_batches:
                routes.setdefault(link, []).append(request_id)
        if routes:
            return routes
        # Where other requests are followed, ends go along with what is sent of those.
        return {
            home: []
            for home in self._closed.values()
            if home.takes_batches and not home.num_requests
        }

    def _find_home(self, request_id: str) -> ProposerLink | None:
        """Returns where a request is followed: where it is already, or else where the fewest are.

        None while no proposer is there.
        """
        home = self._followed[request_id].link
        if home is not None and (home.is_willing or (home.is_open and not self._links.has_willing)):
            return home
        return self._links.find_least_loaded()

    def _build_batch(
        self, link: ProposerLink, request_ids: list[str]
    ) -> tuple[proposer_pb2.ProposeRequest, list[str]]:
        """Takes from what is unsent what fits into one message."""
        request = proposer_pb2.ProposeRequest(batch=next(self._batches))
        named: list[str] = []
        num_bytes = 0
        for request_id in request_ids[: find_batch_size(len(request_ids))]:
            if num_bytes >= MAX_BATCH_BYTES:
                break
            del self._unsent[request_id]
            num_bytes += self._followed[request_id].add_to(request, link)
            named.append(request_id)
        for request_id, home in list(self._closed.items()):
            if len(request.closed_request_ids) == MAX_BATCH_REQUESTS:
                break
            if home is link:
                request.closed_request_ids.append(request_id)
            if home is link or not home.is_open:
                del self._closed[request_id]
        return request, named

    def _take_response(
        self, request_ids: list[str], response: proposer_pb2.ProposeResponse, seconds: float
    ) -> None:
        if request_ids:
            self.waits.note_seconds(seconds)
        gaps = {gap.request_id: gap.num_known_tokens for gap in response.gaps}
        for request_id in request_ids:
            followed = self._followed.get(request_id)
            if followed is None:
                continue
            if request_id not in gaps:
                followed.num_gaps = 0
            elif response.batch > followed.repaired_before:
                self._repair(request_id, followed, gaps[request_id])
        for refusal in response.refusals:
            self._take_refusal(refusal)
        if windows := [each for each in response.windows if each.request_id in self._followed]:
            self._take_windows(windows)
        self.waits.note_answer()
        if self._unsent or self._closed:
            self._flush_soon()

    def _take_refusal(self, refusal: proposer_pb2.Refusal) -> None:
        if self._forget(refusal.request_id) is not None:
            metrics.PROPOSER_REFUSALS.inc()
            logger.warning(
                "no drafts from proposers for request %s: %s", refusal.request_id, refusal.reason
            )

    def _take_windows(self, messages: Sequence[proposer_pb2.Window]) -> None:
        outcomes = self._on_windows(messages)
        metrics.WINDOWS.labels("taken").inc(outcomes.count(True))
        metrics.WINDOWS.labels("late").inc(outcomes.count(False))
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, ValueError):
                self._note_refused(message.request_id, outcome)

    def _note_refused(self, request_id: str, error: ValueError) -> None:
        metrics.WINDOWS.labels("refused").inc()
        followed = self._followed[request_id]
        if not followed.has_bad_window:
            followed.has_bad_window = True
            logger.warning("a window of request %s is refused: %s", request_id, error)

    def _repair(self, request_id: str, followed: Followed, num_known_tokens: int) -> None:
        """Sends again what a proposer lacks, ever later if that does not help."""
        if followed.repair(num_known_tokens):
            self._unsent[request_id] = None
            self._flush_soon()
        else:
            self._unsent.pop(request_id, None)
