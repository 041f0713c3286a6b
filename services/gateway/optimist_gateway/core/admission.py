"""Who may begin a request now, and when the others should come back."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

from optimist_gateway.core.error import ApiError, shutting_down

MAX_ACCOUNTS = 4096
"""Clients that are remembered; beyond it those are forgotten of whom nothing runs."""
MEMORY_SECONDS = 30.0
"""What happened longer ago than this counts for little."""
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Between these a client is to come back."""


@dataclass(frozen=True)
class AdmissionLimits:
    """Limits that the person who runs the gateway sets; those of a client are 0 for none."""

    max_num_requests: int
    """Choices of requests in progress."""
    max_num_requests_per_client: int = 0
    requests_per_minute: float = 0
    tokens_per_minute: float = 0
    """Of prompts and answers; counted when a request has ended, so that a client may overdraw."""


class ServiceRate:
    """Exponentially weighted rate of events."""

    def __init__(self, now: float) -> None:
        self._started = self._updated = now
        self._weight = 0.0

    def observe(self, count: int, now: float) -> None:
        """Notes that `count` choices ended at a time, in seconds."""
        self._decay(now)
        self._weight += count

    def per_second(self, now: float) -> float:
        """Returns the rate; 0 if nothing was observed."""
        self._decay(now)
        # In the beginning the weights do not yet sum to MEMORY_SECONDS.
        seen = MEMORY_SECONDS * (1 - exp(-max(now - self._started, 1.0) / MEMORY_SECONDS))
        return self._weight / seen

    def seconds_until(self, count: int, now: float) -> float:
        """Returns when `count` choices will probably have ended, bounded to what clients bear."""
        rate = self.per_second(now)
        if not self._weight:
            return SHORTEST_SECONDS
        return bounded(count / rate if count < rate * LONGEST_SECONDS else LONGEST_SECONDS)

    def _decay(self, now: float) -> None:
        self._weight *= exp(-max(now - self._updated, 0.0) / MEMORY_SECONDS)
        self._updated = now


def bounded(seconds: float) -> float:
    """Returns how long a client is to wait."""
    return min(max(seconds, SHORTEST_SECONDS), LONGEST_SECONDS)


class TokenBucket:
    """Holds at most a minute's worth of units and fills steadily; a rate of 0 is no limit."""

    def __init__(self, per_minute: float, now: float) -> None:
        """Starts full at a time, in seconds; it holds at most what comes in a minute."""
        self._per_minute = self._level = per_minute
        self._updated = now

    def seconds_until(self, units: float, now: float) -> float:
        """Returns how long it takes until so many units are there; 0 if they are."""
        if not self._per_minute:
            return 0.0
        self._fill(now)
        return max(units - self._level, 0.0) * 60 / self._per_minute

    def take(self, units: float, now: float) -> None:
        """Takes units; more than are there leave a debt."""
        self._fill(now)
        self._level -= units

    def is_full(self, now: float) -> bool:
        """Returns whether nothing was taken of late."""
        self._fill(now)
        return self._level >= self._per_minute

    def _fill(self, now: float) -> None:
        gained = max(now - self._updated, 0.0) * self._per_minute / 60
        self._level = min(self._level + gained, self._per_minute)
        self._updated = now


class _Account:
    """What one client holds and has used."""

    def __init__(self, limits: AdmissionLimits, now: float) -> None:
        self.num_choices = 0
        self.rate = ServiceRate(now)
        self.requests = TokenBucket(limits.requests_per_minute, now)
        self.tokens = TokenBucket(limits.tokens_per_minute, now)

    def is_idle(self, now: float) -> bool:
        return not self.num_choices and self.requests.is_full(now) and self.tokens.is_full(now)


class Admission:
    """Bounds what is in progress, of all clients and of each.

    Nobody waits here: the one queue is the scheduler's, which goes by priority and is bounded.
    """

    def __init__(self, limits: AdmissionLimits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._accounts: dict[str, _Account] = {}
        self._rate = ServiceRate(clock())
        self.num_requests = 0
        """Choices in progress."""
        self.is_closed = False
        """Whether no more requests are taken, because the gateway ends."""

    def admit(self, client: str, num_choices: int) -> None:
        """Admits all choices of a client's request, up to its `release`; or see `require_room`."""
        self.require_room(client, num_choices)
        now = self._clock()
        account = self._account(client, now)
        account.requests.take(1, now)
        account.num_choices += num_choices
        self.num_requests += num_choices

    def require_room(self, client: str, num_choices: int = 1) -> None:
        """Raises ApiError if so many choices would not be admitted; admits nothing.

        Its status is 429 if the client has too many or asks too often, 503 if the gateway ends.
        """
        if self.is_closed:
            raise shutting_down()
        now, limits = self._clock(), self._limits
        account = self._account(client, now)
        if wait := account.requests.seconds_until(1, now):
            often = f"you may send {limits.requests_per_minute:g} requests in a minute"
            raise _refusal(f"{often}; try again later", bounded(wait))
        if wait := account.tokens.seconds_until(1, now):
            much = f"you may use {limits.tokens_per_minute:g} tokens in a minute"
            raise _refusal(f"{much}; try again later", bounded(wait))
        most = limits.max_num_requests_per_client
        if most and (excess := account.num_choices + num_choices - most) > 0:
            many = f"as many of your requests are in progress as may be ({most})"
            wait = account.rate.seconds_until(excess, now)
            raise _refusal(f"{many}; try again when one has ended", wait)
        if (excess := self.num_requests + num_choices - limits.max_num_requests) > 0:
            full = f"{self.num_requests} requests are in progress; try again later"
            raise _refusal(full, self._rate.seconds_until(excess, now), "overloaded")

    def release(self, client: str, num_choices: int) -> None:
        """Notes the end of a request."""
        now = self._clock()
        account = self._account(client, now)
        account.num_choices -= num_choices
        self.num_requests -= num_choices
        account.rate.observe(num_choices, now)
        self._rate.observe(num_choices, now)

    def charge(self, client: str, num_tokens: int) -> None:
        """Counts tokens of prompt and answer."""
        now = self._clock()
        self._account(client, now).tokens.take(num_tokens, now)

    def retry_seconds(self) -> float:
        """Returns when there will probably be room, in seconds from now."""
        return self._rate.seconds_until(1, self._clock())

    def _account(self, client: str, now: float) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= MAX_ACCOUNTS:
                self._accounts = {
                    name: one for name, one in self._accounts.items() if not one.is_idle(now)
                }
            account = self._accounts[client] = _Account(self._limits, now)
        return account


def _refusal(message: str, seconds: float, code: str = "rate_limit_exceeded") -> ApiError:
    return ApiError(429, message, code=code, retry_seconds=seconds)
