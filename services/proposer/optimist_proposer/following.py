"""The requests that live in this process: opened, observed and closed without waiting."""

import logging
import secrets
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence

from optimist_aligner.algorithm import Algorithm
from optimist_aligner.text.sources import INT32, Sources
from optimist_common.request_log.logs import RequestLogs
from optimist_proposer.core.live_requests import LiveRequest, RequestCache
from optimist_proposer.core.messages import UNKNOWN, Answer, LimitCheck, Observation, Open
from optimist_proposer.core.sources import (
    Prepared,
    SourceName,
    WrongKind,
    WrongValueError,
    name_sources,
    pack_sources,
    packed_bytes,
    unpack_sources,
)
from optimist_proposer.core.stored_request import GENERATION_BYTES, StoredRequest
from optimist_proposer.observing import metrics
from optimist_proposer.observing.alignment_log import AlignmentLog

logger = logging.getLogger(__name__)

_LONG_SECONDS = 1e-3
# Of an output from the store, so that other streams need not wait for all of it.
_TOKENS_AT_A_TIME = 4096

_ALGORITHM_FAILED = "predicted_token_ids: the algorithm failed, see the proposer's log"


class _ProcessorClock:
    """Measures processor time: by the wall clock, which is asked in a tenth of the time.

    What that says of a long time is checked: the thread may not have run all along.
    """

    def __init__(self) -> None:
        self._wall, self._thread = time.perf_counter(), time.thread_time()

    def lap(self) -> float:
        """Returns the seconds since the last call, or since the clock was made."""
        before, self._wall = self._wall, time.perf_counter()
        seconds = self._wall - before
        if seconds > _LONG_SECONDS:
            thread, self._thread = self._thread, time.thread_time()
            seconds = min(seconds, self._thread - thread)
        return seconds


class Following:
    """Working copies, with what bounds them and what is noted of them."""

    def __init__(
        self,
        algorithm: Algorithm,
        cache: RequestCache,
        check: LimitCheck,
        *,
        window_tokens: int,
        min_value: float,
        prompt_tokens: int,
        logs: RequestLogs | None = None,
        alignment_log: AlignmentLog | None = None,
    ) -> None:
        """Holds nothing yet; the prompt's last `prompt_tokens` are a source.

        A window has at most `window_tokens` nodes, each worth at least `min_value`.
        """
        self._algorithm, self._cache, self._check = algorithm, cache, check
        self._window_tokens, self._min_value = window_tokens, min_value
        self._prompt_tokens, self._logs = prompt_tokens, logs
        self._alignment_log = alignment_log
        metrics.LIVE_REQUESTS.set_function(lambda: cache.num_requests)
        metrics.REFERENCES.set_function(lambda: cache.num_sources)
        metrics.MEMORY_BYTES.set_function(lambda: cache.num_bytes)

    def get(self, request_id: str) -> LiveRequest | None:
        """Returns a request, or None if it does not live here."""
        return self._cache.get(request_id)

    def get_sources(self, name: SourceName) -> Prepared | None:
        """Returns sources, or None if they are not here."""
        return self._cache.get_sources(name)

    def prepare(self, name: SourceName, sources: Sources) -> Prepared:
        """Returns sources ready to be followed, those that are here if they are."""
        prepared = self._cache.get_sources(name)
        if prepared is None:
            prepared = Prepared(name, sources, self._algorithm.prepare(sources))
            self._cache.put_sources(prepared)
        return prepared

    def open(self, request: Open, answer: Answer) -> LiveRequest | None:
        """Begins to follow a request, anew if it was followed; None if it is refused."""
        request_id = request.request_id
        self.drop(request_id)
        prompt = request.prompt[-self._prompt_tokens :] if self._prompt_tokens else array(INT32)
        reason = self._check.fault(request.predictions, prompt)
        if reason is not None:
            self._refuse(request_id, reason, answer)
            return None
        clock = _ProcessorClock()
        sources = Sources(request.predictions, prompt)
        name = name_sources(request.tenant, pack_sources(sources))
        try:
            prepared = self.prepare(name, sources)
            live = LiveRequest(request_id, secrets.token_bytes(GENERATION_BYTES), prepared)
            if self._logs is not None:
                self._logs.open(request_id, prepared.sources)
            self._send(live, 0, clock, answer)
            reason = self._check.delay(live.spent_seconds, 0)
        except Exception:
            logger.exception("request %s cannot be followed", request_id, extra=_about(request_id))
            reason = _ALGORITHM_FAILED
        if reason is not None:
            self._refuse(request_id, reason, answer)
            return None
        self._keep(live)
        return live

    def observe(
        self, grouped: Mapping[str, Sequence[Observation]], answer: Answer
    ) -> Iterator[LiveRequest]:
        """Takes observations of requests in turn; yields those that grew."""
        clock = _ProcessorClock()
        knows_all = self._check.knows(one.token_ids for ones in grouped.values() for one in ones)
        for request_id, observations in grouped.items():
            live = self._cache.get(request_id)
            if live is None:
                answer.gaps[request_id] = UNKNOWN
                continue
            num_known = len(live.output)
            try:
                reason = self._fold(live, observations, answer, knows_all=knows_all)
                grew = len(live.output) > num_known
                if grew and reason is None:
                    seconds = self._send(live, num_known, clock, answer)
                    metrics.OBSERVATION_SECONDS.observe(seconds)
                    reason = self._check.delay(live.spent_seconds, len(live.output))
            except Exception:
                about = _about(request_id)
                logger.exception("request %s cannot be followed", request_id, extra=about)
                reason = _ALGORITHM_FAILED
            if reason is not None:
                self.drop(request_id)
                self._refuse(request_id, reason, answer)
                clock.lap()
            elif grew:
                self._keep(live)
                yield live

    @property
    def max_source_bytes(self) -> int:
        """Size of the largest packed sources that are not refused."""
        limits = self._check.limits
        num_separators = limits.max_predictions + 1
        return packed_bytes(limits.max_prediction_tokens + self._prompt_tokens + num_separators)

    def unpack(self, name: SourceName, value: bytes) -> Prepared:
        """Returns sources from the store ready to be followed.

        Raises:
            WrongValueError: They are not those of the name, or an opening with them is refused.
        """
        limits = self._check.limits
        predictions, prompt = unpack_sources(name, value, limits.max_predictions)
        reason = self._check.fault(predictions, prompt)
        if len(prompt) > self._prompt_tokens:
            reason = f"{len(prompt)} tokens of a prompt, more than prompt_tokens"
        if reason is not None:
            raise WrongValueError(WrongKind.LIMIT, reason)
        return self.prepare(name, Sources(predictions, prompt))

    def adopt(self, request_id: str, stored: StoredRequest, prepared: Prepared) -> Iterator[None]:
        """Brings a request up to what the store has, some thousand tokens at a time.

        Between two of them the request may be dropped or opened anew, which ends this.

        Raises:
            WrongValueError: The output is none of this request.
        """
        held, output = self._cache.get(request_id), stored.output
        live = held
        if live is None or live.generation != stored.generation:
            if live is not None and live.num_known > len(output):
                return
            live = LiveRequest(request_id, stored.generation, prepared)
        if not self._check.knows([output]):
            raise WrongValueError(WrongKind.TOKEN, "an output has tokens beyond the vocabulary")
        num_same = min(live.num_known, len(output))
        if live.output[:num_same] != output[:num_same]:
            raise WrongValueError(WrongKind.OUTPUT, "the output is another one")
        clock = _ProcessorClock()
        if held is not live and self._logs is not None:
            self._logs.open(request_id, live.prepared.sources)
        logger.debug(
            "request %s: %d output tokens read from the store",
            *(request_id, len(output) - num_same),
            extra=_about(request_id),
        )
        live.num_logged = len(output)
        self._keep(live)
        for start in range(num_same, len(output), _TOKENS_AT_A_TIME):
            new = live.fold(start, output[start : start + _TOKENS_AT_A_TIME])
            self._note_read(live, new or output[:0], clock.lap())
            self._keep(live)
            yield
            if self._cache.get(request_id) is not live:
                return

    def _note_read(self, live: LiveRequest, new: "array[int]", seconds: float) -> None:
        metrics.REPLAYED_TOKENS.inc(len(new))
        live.spent_seconds += seconds
        if self._logs is not None and new:
            num_alignments = live.num_alignments
            self._logs.step(live.request_id, new, live.num_known, None, seconds, num_alignments)

    def forget(self, request: LiveRequest) -> None:
        """Drops a working copy that is of no use, unless there is another one by now."""
        if self._cache.get(request.request_id) is request:
            self.drop(request.request_id)

    def drop(self, request_id: str) -> None:
        """Follows a request no longer, if it lives here."""
        if self._cache.pop(request_id) is not None and self._logs is not None:
            self._logs.close(request_id)

    def _fold(
        self,
        live: LiveRequest,
        observations: Sequence[Observation],
        answer: Answer,
        *,
        knows_all: bool,
    ) -> str | None:
        """Returns why the request is refused, or None."""
        for observation in observations:
            unknown = None if knows_all else self._check.unknown_token(observation.token_ids)
            if unknown is not None:
                return f"token_ids: token {unknown} is not in the vocabulary of the tokenizer"
            if live.fold(observation.position, observation.token_ids) is None:
                answer.gaps[live.request_id] = live.num_known
                return None
        return None

    def _send(
        self, live: LiveRequest, num_before: int, clock: _ProcessorClock, answer: Answer
    ) -> float:
        """Sends what comes next, if it is new; returns the processor time that `clock` says.

        Of the output all but the first `num_before` tokens are new.
        """
        last, window = live.window, live.next_window(self._window_tokens, self._min_value)
        if window is not None:
            answer.windows[live.request_id] = window
        seconds = clock.lap()
        live.spent_seconds += seconds
        if self._logs is not None:
            draft = None if window is None else window.draft
            new, num_alignments = live.output[num_before:], live.num_alignments
            self._logs.step(live.request_id, new, live.num_known, draft, seconds, num_alignments)
        if self._alignment_log is not None:
            self._alignment_log.write(live, live.num_known - num_before, last, window)
        return seconds

    def _keep(self, live: LiveRequest) -> None:
        forgotten = self._cache.put(live)
        if not forgotten:
            return
        metrics.FORGOTTEN.inc(len(forgotten))
        if self._logs is not None:
            for request_id in forgotten:
                self._logs.leave(request_id)

    def _refuse(self, request_id: str, reason: str, answer: Answer) -> None:
        if self._logs is not None:
            self._logs.close(request_id)
        logger.warning(
            "request %s goes on without drafts: %s", request_id, reason, extra=_about(request_id)
        )
        answer.refuse(request_id, reason)


def _about(request_id: str) -> dict[str, str]:
    """Returns what a log line says of the request that it is about."""
    return {"request_id": request_id}
