"""One batch of opens, observations and closes, applied to the store."""

import logging
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from optimist_proposer import metrics
from optimist_proposer.core.algorithm import Algorithm
from optimist_proposer.core.cursor import Cursor
from optimist_proposer.core.prediction import Prediction
from optimist_proposer.core.window import Window, next_window
from optimist_proposer.store import CursorStore, Opening, Snapshot, StoreError, Update

logger = logging.getLogger(__name__)

UNKNOWN = -1
"""Number of known tokens of a request that is not known at all."""

# A conflict means that another replica moved the request: its state is read again once.
_NUM_ATTEMPTS = 2
_LOG_INTERVAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Open:
    """A request to follow, with its predicted tokens."""

    request_id: str
    token_ids: "array[int]"


@dataclass(frozen=True, slots=True)
class Observation:
    """Verified output tokens of a request from an output position on."""

    request_id: str
    position: int
    token_ids: "array[int]"


@dataclass(slots=True)
class Answer:
    """What a batch brought about, by request id."""

    windows: dict[str, Window] = field(default_factory=dict)
    gaps: dict[str, int] = field(default_factory=dict)
    """Known tokens of the requests whose observations begin behind them; UNKNOWN."""


class BatchProposer:
    """Applies batches; all state is in the store, so any number of these can share it."""

    def __init__(
        self, algorithm: Algorithm, store: CursorStore, window_tokens: int, max_tokens: int
    ) -> None:
        """Takes the most tokens of a window and of a prediction."""
        self._algorithm, self._store = algorithm, store
        self._window_tokens, self._max_tokens = window_tokens, max_tokens
        self._next_log = float("-inf")

    async def apply(
        self, opens: Sequence[Open], observations: Sequence[Observation], closes: Sequence[str]
    ) -> Answer:
        """Applies opens, then observations, then closes; never raises for the store's sake."""
        answer = Answer()
        grouped: dict[str, list[Observation]] = {}
        for observation in observations:
            grouped.setdefault(observation.request_id, []).append(observation)
        metrics.OBSERVATIONS.inc(len(observations))
        try:
            await self._open(opens, answer)
            await self._observe(grouped, answer)
        except StoreError as error:
            self._note(error)
            answer = Answer(gaps=dict.fromkeys(grouped, UNKNOWN))
        try:
            if closes:
                await self._store.close(closes)
        except StoreError as error:
            # What is not dropped now, Redis drops when its time is over.
            self._note(error)
        metrics.WINDOWS.inc(len(answer.windows))
        metrics.GAPS.inc(len(answer.gaps))
        return answer

    async def _open(self, opens: Sequence[Open], answer: Answer) -> None:
        openings: list[Opening] = []
        for request in opens:
            if len(request.token_ids) > self._max_tokens:
                logger.warning(
                    "request %s goes on without drafts: its prediction has %d tokens, more than "
                    "max_prediction_tokens (%d)",
                    request.request_id,
                    len(request.token_ids),
                    self._max_tokens,
                )
                continue
            prediction = self._algorithm.prepare(request.token_ids)
            cursor = Cursor()
            window = self._next_window(prediction, cursor)
            if window is not None:
                answer.windows[request.request_id] = window
            openings.append(Opening(request.request_id, prediction, cursor))
        if openings:
            await self._store.open(openings)

    async def _observe(self, pending: dict[str, list[Observation]], answer: Answer) -> None:
        for _ in range(_NUM_ATTEMPTS):
            if not pending:
                return
            windows: dict[str, Window] = {}
            updates: list[Update] = []
            snapshots = await self._store.load(list(pending))
            for (request_id, observations), snapshot in zip(
                pending.items(), snapshots, strict=True
            ):
                answer.gaps.pop(request_id, None)
                if snapshot is None:
                    answer.gaps[request_id] = UNKNOWN
                    continue
                known = snapshot.cursor.num_known
                if not self._fold(snapshot, observations):
                    answer.gaps[request_id] = snapshot.cursor.num_known
                if snapshot.cursor.num_known == known:
                    continue
                updates.append(Update(request_id, snapshot.version, snapshot.cursor))
                window = self._next_window(snapshot.prediction, snapshot.cursor)
                if window is not None:
                    windows[request_id] = window
            conflicts = await self._save(updates)
            answer.windows.update(
                (request_id, window)
                for request_id, window in windows.items()
                if request_id not in conflicts
            )
            pending = {request_id: pending[request_id] for request_id in conflicts}
        for request_id in pending:
            answer.gaps.pop(request_id, None)

    def _next_window(self, prediction: Prediction, cursor: Cursor) -> Window | None:
        reach = self._algorithm.reach(prediction, cursor)
        return next_window(prediction, cursor, min(reach, self._window_tokens))

    async def _save(self, updates: Sequence[Update]) -> set[str]:
        """Returns the requests whose state another replica had moved."""
        if not updates:
            return set()
        saved = await self._store.save(updates)
        conflicts = {
            update.request_id for update, done in zip(updates, saved, strict=True) if not done
        }
        metrics.CONFLICTS.inc(len(conflicts))
        return conflicts

    def _fold(self, snapshot: Snapshot, observations: Sequence[Observation]) -> bool:
        """Moves the snapshot's cursor by what is new; returns False at the first gap."""
        cursor = snapshot.cursor
        for observation in observations:
            num_old = cursor.num_known - observation.position
            if num_old < 0:
                return False
            token_ids = observation.token_ids[num_old:] if num_old else observation.token_ids
            if not token_ids:
                continue
            started = time.perf_counter()
            progress = self._algorithm.observe(snapshot.prediction, cursor, token_ids)
            if progress.num_alignments:
                metrics.ALIGNMENT_SECONDS.observe(time.perf_counter() - started)
                metrics.ALIGNMENTS.inc(progress.num_alignments)
            if progress.num_losses:
                metrics.LOSSES.inc(progress.num_losses)
        return True

    def _note(self, error: StoreError) -> None:
        metrics.STORE_ERRORS.inc()
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + _LOG_INTERVAL_SECONDS
            logger.warning("no drafts for now: %s", error)
