"""What other replicas know of requests, read from the store, where nothing is trusted."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from optimist_proposer.core.live_requests import LiveRequest
from optimist_proposer.core.messages import Observation
from optimist_proposer.core.sources import Prepared, SourceName, WrongValueError
from optimist_proposer.core.stored_request import MAX_STORED_TOKENS, StoredRequest
from optimist_proposer.following import Following
from optimist_proposer.observing import metrics
from optimist_proposer.observing.seldom import SeldomWarnings
from optimist_proposer.store.store import OutputStore, StoreError

logger = logging.getLogger(__name__)

Grouped = Mapping[str, Sequence[Observation]]


class StoreReader:
    """Brings requests of which this process knows too little up to what the store has.

    A value that is wrong costs its request this, and no other anything: the request stays as it is
    known here, and the scheduler sends what is lacking.
    """

    def __init__(self, following: Following, store: OutputStore | None) -> None:
        """Takes where requests live, and what replicas share, if they share anything."""
        self._following, self._store = following, store
        self._warnings = SeldomWarnings(logger)

    async def catch_up(self, grouped: Grouped) -> None:
        """Reads what is lacking before observations; never raises for the store's sake."""
        if self._store is None:
            return
        lacking = {name: ones for name, ones in grouped.items() if self._lacks_tokens(name, ones)}
        if not lacking:
            return
        try:
            await self._read(self._store, lacking)
        except StoreError as error:
            metrics.STORE_ERRORS.inc()
            self._warnings.write(
                "store", "requests of other replicas are unknown for now: %s", error
            )

    def _lacks_tokens(self, request_id: str, ones: Sequence[Observation]) -> bool:
        live = self._following.get(request_id)
        if live is None:
            return True
        num_known = live.num_known
        for one in ones:
            if one.position > num_known:
                return True
            num_known = max(num_known, one.position + len(one.token_ids))
        return False

    async def _read(self, store: OutputStore, lacking: Grouped) -> None:
        held = {request_id: self._following.get(request_id) for request_id in lacking}
        # No replica has tokens that the scheduler does not know.
        ends = {
            request_id: max(one.position + len(one.token_ids) for one in ones)
            for request_id, ones in lacking.items()
        }
        found = await store.read(
            {request_id: min(end, MAX_STORED_TOKENS) for request_id, end in ends.items()}
        )
        users: dict[SourceName, dict[str, StoredRequest]] = {}
        for request_id, stored in found.items():
            if isinstance(stored, WrongValueError):
                self._note(request_id, stored)
            else:
                users.setdefault(stored.source_name, {})[request_id] = stored
        absent = [name for name in users if self._following.get_sources(name) is None]
        for name in users.keys() - absent:
            await self._adopt(users[name], held, self._following.get_sources(name))
        values = store.read_sources(absent, self._following.max_source_bytes)
        async for name, value in values:
            await self._adopt(users[name], held, self._unpack(name, value, next(iter(users[name]))))

    def _unpack(
        self, name: SourceName, value: bytes | WrongValueError, request_id: str
    ) -> Prepared | None:
        try:
            if isinstance(value, WrongValueError):
                raise value
            return self._following.unpack(name, value)
        except WrongValueError as error:
            self._note(request_id, error)
        except Exception:
            self._log_failure(request_id)
        return None

    async def _adopt(
        self,
        found: Mapping[str, StoredRequest],
        held: Mapping[str, LiveRequest | None],
        prepared: Prepared | None,
    ) -> None:
        """Takes requests with the same sources, unless they were opened or dropped meanwhile."""
        for request_id, stored in found.items():
            if prepared is None or self._following.get(request_id) is not held[request_id]:
                continue
            try:
                for _ in self._following.adopt(request_id, stored, prepared):
                    # It takes time, in which other streams and writes need not wait.
                    await asyncio.sleep(0)
            except WrongValueError as error:
                self._note(request_id, error)
            except Exception:
                self._log_failure(request_id)
                # It may have stopped half way; the request is opened anew, with its whole output.
                self._following.drop(request_id)

    def _note(self, request_id: str, error: WrongValueError) -> None:
        metrics.WRONG_VALUES.labels(error.kind).inc()
        self._warnings.write(
            error.kind,
            "request %s is taken as unknown: its value in the store is wrong (%s): %s",
            request_id,
            error.kind,
            error,
        )

    def _log_failure(self, request_id: str) -> None:
        about = {"request_id": request_id}
        logger.exception("request %s is taken as unknown", request_id, extra=about)
