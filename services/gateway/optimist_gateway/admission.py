"""How many requests may be in progress."""

from collections.abc import Iterator
from contextlib import contextmanager

from optimist_gateway.api.errors import ApiError
from optimist_gateway.metrics import GatewayMetrics


class Admission:
    """Places for what is in progress at the scheduler."""

    def __init__(self, max_num_requests: int, metrics: GatewayMetrics) -> None:
        self._max_num_requests = max_num_requests
        self._num_requests = 0
        self._metrics = metrics

    @contextmanager
    def places(self, num_requests: int) -> Iterator[None]:
        """Takes places, one for each choice of a request, for the time of the block.

        Raises:
            ApiError: There are not as many; status 429.
        """
        if self._num_requests + num_requests > self._max_num_requests:
            raise ApiError(
                429,
                f"{self._num_requests} requests are in progress; try again later",
                code="overloaded",
            )
        self._take(num_requests)
        try:
            yield
        finally:
            self._take(-num_requests)

    def _take(self, num_requests: int) -> None:
        self._num_requests += num_requests
        self._metrics.running.set(self._num_requests)
