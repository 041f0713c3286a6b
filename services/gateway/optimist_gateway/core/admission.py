"""Who may begin a request now, and when the others should come back."""

from collections.abc import Callable
from dataclasses import dataclass, field

from optimist_gateway.core.error import ApiError, shutting_down

MAX_ACCOUNTS = 4096
"""Clients that are remembered; beyond it those are forgotten of whom nothing runs."""
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Between these a client is to come back that has used its minute."""


def _bounded(seconds: float) -> float:
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


@dataclass(eq=False)
class _Account:
    """What one client holds and has used."""

    requests: TokenBucket
    tokens: TokenBucket
    num_choices: int = 0

    def is_idle(self, now: float) -> bool:
        return not self.num_choices and self.requests.is_full(now) and self.tokens.is_full(now)


@dataclass(eq=False, kw_only=True)
class Admission:
    """Bounds what is in progress, of all clients and of each; limits of a client are 0 for none.

    Nobody waits here: the one queue is the scheduler's, which goes by priority and is bounded.
    """

    max_num_requests: int
    """Choices of requests in progress."""
    max_num_requests_per_client: int = 0
    requests_per_minute: float = 0
    tokens_per_minute: float = 0
    """Of prompts and answers; counted when a request has ended, so that a client may overdraw."""
    clock: Callable[[], float]
    """Says what time it is, in seconds."""
    num_requests: int = field(init=False, default=0)
    """Choices in progress."""
    is_closed: bool = field(init=False, default=False)
    """Whether no more requests are taken, because the gateway ends."""
    _accounts: dict[str, _Account] = field(init=False, default_factory=dict)

    def admit(self, client: str, num_choices: int) -> None:
        """Admits all choices of a client's request, up to its `release`; or see `require_room`."""
        self.require_room(client, num_choices)
        now = self.clock()
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
        now = self.clock()
        account = self._account(client, now)
        if wait := account.requests.seconds_until(1, now):
            often = f"you may send {self.requests_per_minute:g} requests in a minute"
            raise _refusal(f"{often}; try again later", _bounded(wait))
        if wait := account.tokens.seconds_until(1, now):
            much = f"you may use {self.tokens_per_minute:g} tokens in a minute"
            raise _refusal(f"{much}; try again later", _bounded(wait))
        most = self.max_num_requests_per_client
        if most and account.num_choices + num_choices > most:
            many = f"as many of your requests are in progress as may be ({most})"
            raise _refusal(f"{many}; try again when one has ended")
        if self.num_requests + num_choices > self.max_num_requests:
            full = f"{self.num_requests} requests are in progress; try again later"
            raise _refusal(full, code="overloaded")

    def release(self, client: str, num_choices: int) -> None:
        """Notes the end of a request."""
        self._account(client, self.clock()).num_choices -= num_choices
        self.num_requests -= num_choices

    def charge(self, client: str, num_tokens: int) -> None:
        """Counts tokens of prompt and answer."""
        now = self.clock()
        self._account(client, now).tokens.take(num_tokens, now)

    def _account(self, client: str, now: float) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= MAX_ACCOUNTS:
                self._accounts = {
                    name: one for name, one in self._accounts.items() if not one.is_idle(now)
                }
            account = _Account(
                TokenBucket(self.requests_per_minute, now), TokenBucket(self.tokens_per_minute, now)
            )
            self._accounts[client] = account
        return account


def _refusal(
    message: str, seconds: float | None = None, code: str = "rate_limit_exceeded"
) -> ApiError:
    return ApiError(429, message, code=code, retry_seconds=seconds)
