"""Who may begin a request now, and when the others should come back."""

from dataclasses import dataclass
from enum import Enum

from optimist_gateway.core.service_rate import ServiceRate, bounded
from optimist_gateway.core.token_bucket import TokenBucket

MAX_ACCOUNTS = 4096
"""Clients that are remembered; beyond it those are forgotten of whom nothing runs."""
RESERVE = 8
"""While clients compete, one part in so many of the places is for those below their share."""


class Limit(Enum):
    """What keeps a request from beginning."""

    PLACES = "places"
    SHARE = "share"
    CONCURRENCY = "concurrency"
    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True)
class Refusal:
    """Why a request may not begin now."""

    limit: Limit
    retry_seconds: float
    """When it may be worth another try, by what was measured."""


@dataclass(frozen=True)
class AdmissionLimits:
    """Limits that the person who runs the gateway sets; those of a client are 0 for none."""

    max_num_requests: int
    """Places, one for each choice of a request."""
    max_num_requests_per_client: int = 0
    requests_per_minute: float = 0
    tokens_per_minute: float = 0
    """Of prompts and answers; counted when a request has ended, so that a client may overdraw."""


class _Account:
    """What one client holds and has used."""

    def __init__(self, limits: AdmissionLimits, now: float) -> None:
        self.num_places = 0
        self.rate = ServiceRate(now)
        self.requests = TokenBucket(limits.requests_per_minute, now)
        self.tokens = TokenBucket(limits.tokens_per_minute, now)

    def is_idle(self, now: float) -> bool:
        return not self.num_places and self.requests.is_full(now) and self.tokens.is_full(now)


class AdmissionControl:
    """Shares places among clients. Nobody waits here: the one queue is the scheduler's."""

    def __init__(self, limits: AdmissionLimits, now: float) -> None:
        self._limits = limits
        self._accounts: dict[str, _Account] = {}
        self._rate = ServiceRate(now)
        self.num_places = 0
        """Places that are taken."""

    def admit(
        self, client: str, num_places: int, now: float, *, competes: bool = False
    ) -> Refusal | None:
        """Takes places for a client's request, or says why not.

        Args:
            client: Its name.
            num_places: How many, all or none.
            now: The time, in seconds.
            competes: Whether there may be other clients, for whom places are kept.
        """
        refusal = self.find_refusal(client, num_places, now, competes=competes)
        if refusal is None:
            account = self._account(client, now)
            account.requests.take(1, now)
            account.num_places += num_places
            self.num_places += num_places
        return refusal

    def find_refusal(
        self, client: str, num_places: int, now: float, *, competes: bool = False
    ) -> Refusal | None:
        """Returns why `admit` would take no places; takes none."""
        account = self._account(client, now)
        return self._find_refusal(account, num_places, now, competes=competes)

    def release(self, client: str, num_places: int, now: float) -> None:
        """Gives places back."""
        account = self._account(client, now)
        account.num_places -= num_places
        self.num_places -= num_places
        account.rate.observe(num_places, now)
        self._rate.observe(num_places, now)

    def charge(self, client: str, num_tokens: int, now: float) -> None:
        """Counts tokens of prompt and answer."""
        self._account(client, now).tokens.take(num_tokens, now)

    def retry_seconds(self, now: float) -> float:
        """Returns when a place will probably become free, in seconds from now."""
        return self._rate.seconds_until(1, now)

    def _find_refusal(
        self, account: _Account, num_places: int, now: float, *, competes: bool
    ) -> Refusal | None:
        limits = self._limits
        if wait := account.requests.seconds_until(1, now):
            return Refusal(Limit.REQUESTS, bounded(wait))
        if wait := account.tokens.seconds_until(1, now):
            return Refusal(Limit.TOKENS, bounded(wait))
        most = limits.max_num_requests_per_client
        if most and (excess := account.num_places + num_places - most) > 0:
            return Refusal(Limit.CONCURRENCY, account.rate.seconds_until(excess, now))
        if (excess := self.num_places + num_places - limits.max_num_requests) > 0:
            return Refusal(Limit.PLACES, self._rate.seconds_until(excess, now))
        if competes and (excess := self._excess_of_share(account, num_places)) > 0:
            return Refusal(Limit.SHARE, self._rate.seconds_until(excess, now))
        return None

    def _excess_of_share(self, account: _Account, num_places: int) -> int:
        """Returns by how much a client would take of what is kept for those below their share."""
        most = self._limits.max_num_requests
        num_active = sum(1 for one in self._accounts.values() if one.num_places)
        # A rival who has none yet is expected.
        num_active = max(num_active + (not account.num_places), 2)
        if not self.num_places or (account.num_places + num_places) * num_active <= most:
            return 0
        return self.num_places + num_places - (most - max(most // RESERVE, 1))

    def _account(self, client: str, now: float) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= MAX_ACCOUNTS:
                self._accounts = {
                    name: one for name, one in self._accounts.items() if not one.is_idle(now)
                }
            account = self._accounts[client] = _Account(self._limits, now)
        return account
