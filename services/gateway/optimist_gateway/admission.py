"""How many requests may be in progress."""

from types import TracebackType

from optimist_gateway.api.errors import ApiError
from optimist_gateway.metrics import GatewayMetrics


class Admission:
    """A place for each request in progress; to be entered as a context."""

    def __init__(self, max_num_requests: int, metrics: GatewayMetrics) -> None:
        self._max_num_requests = max_num_requests
        self._num_requests = 0
        self._metrics = metrics

    def __enter__(self) -> None:
        """Takes a place; raises ApiError (429) if there is none."""
        if self._num_requests >= self._max_num_requests:
            raise ApiError(
                429,
                f"{self._num_requests} requests are in progress; try again later",
                code="overloaded",
            )
        self._num_requests += 1
        self._metrics.running.set(self._num_requests)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the place back."""
        self._num_requests -= 1
        self._metrics.running.set(self._num_requests)
