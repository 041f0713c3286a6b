"""How many requests may be in progress, and for whom."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from optimist_gateway.core.admission import AdmissionControl, AdmissionLimits, Limit, Refusal
from optimist_gateway.core.error import ApiError, shutting_down
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.security.keys import current_client

_MESSAGES = {
    Limit.CHOICES: "{running} requests are in progress; try again later",
    Limit.SHARE: "{running} requests are in progress, and others may begin theirs first; "
    "try again later",
    Limit.CONCURRENCY: "as many of your requests are in progress as may be ({concurrency}); "
    "try again when one has ended",
    Limit.REQUESTS: "you may send {requests:g} requests in a minute; try again later",
    Limit.TOKENS: "you may use {tokens:g} tokens in a minute; try again later",
}


class Admission:
    """Limits what is in progress at the scheduler.

    There is no queue here: the scheduler has one, which goes by priority and is bounded, and the
    limits bound what runs and waits there together.
    """

    def __init__(self, limits: AdmissionLimits, metrics: GatewayMetrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._control = AdmissionControl(limits, time.monotonic())
        self.is_closed = False
        """Whether no more requests are taken, because the gateway ends."""

    @property
    def num_requests(self) -> int:
        """Choices in progress."""
        return self._control.num_choices

    def require_room(self) -> None:
        """Raises ApiError, as `admit` does, if the client that asks would not be admitted now."""
        self._require(self._control.find_refusal, 1)

    @contextmanager
    def admit(self, num_requests: int) -> Iterator[None]:
        """Counts the choices of a request as in progress for the time of the block.

        Raises:
            ApiError: There are not as many for the client that asks, or it asks too often, status
                429; or the gateway ends, status 503.
        """
        client = self._require(self._control.admit, num_requests)
        self._metrics.running.set(self.num_requests)
        try:
            yield
        finally:
            self._control.release(client, num_requests, time.monotonic())
            self._metrics.running.set(self.num_requests)

    def charge(self, num_tokens: int) -> None:
        """Counts tokens of prompt and answer for the client whose request is answered."""
        self._control.charge(current_client.get().name, num_tokens, time.monotonic())

    def retry_seconds(self) -> float:
        """Returns when there will probably be room, in seconds from now."""
        return self._control.retry_seconds(time.monotonic())

    def _require(self, ask: Callable[..., Refusal | None], num_requests: int) -> str:
        """Returns the name of the client that asks; raises ApiError if it is not admitted."""
        if self.is_closed:
            raise shutting_down()
        client = current_client.get()
        refusal = ask(client.name, num_requests, time.monotonic(), competes=client.competes)
        if refusal is not None:
            raise self._error(refusal)
        return client.name

    def _error(self, refusal: Refusal) -> ApiError:
        message = _MESSAGES[refusal.limit].format(
            running=self.num_requests,
            concurrency=self._limits.max_num_requests_per_client,
            requests=self._limits.requests_per_minute,
            tokens=self._limits.tokens_per_minute,
        )
        is_full = refusal.limit in (Limit.CHOICES, Limit.SHARE)
        code = "overloaded" if is_full else "rate_limit_exceeded"
        return ApiError(429, message, code=code, retry_seconds=refusal.retry_seconds)
