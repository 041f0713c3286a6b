"""Many requests at once, with their results in order."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from optimist_client.answer import Result
from optimist_client.client import Client
from optimist_client.errors import BatchError, OptimistError
from optimist_client.request import Options, Prompt, generate_request
from optimist_client.stream import Stream

# More than a worker runs at once by default (64), so that it never waits for the next request, and
# fewer than a gateway admits (512).
MAX_ANSWERS_IN_FLIGHT = 128

Request = tuple[Prompt, Options]


def run_batch(
    client: Client, requests: Sequence[Request], require_running: Callable[[], None]
) -> list[Result]:
    """Returns the results of requests in their order.

    Args:
        client: Connection to the server.
        requests: Prompts with their options.
        require_running: Called after a request failed; raises if no other can succeed.

    Raises:
        TypeError: An option is unknown or has a wrong type; nothing was sent.
        ValueError: A number does not fit its field; nothing was sent.
        BatchError: Some requests failed; the results of the others are in it.
    """
    _require_valid(requests)
    batch = _Batch(client, require_running)
    most_answers = max((options.get("n", 1) for _, options in requests), default=1)
    num_threads = max(min(MAX_ANSWERS_IN_FLIGHT // max(most_answers, 1), len(requests)), 1)
    with ThreadPoolExecutor(num_threads, "optimist-batch") as pool:
        futures = [pool.submit(batch.result, *request) for request in requests]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            # Without an exception all are done, and this does nothing.
            pool.shutdown(wait=False, cancel_futures=True)
            batch.cancel()
    return _results(futures)


class _Batch:
    """The calls in progress."""

    def __init__(self, client: Client, require_running: Callable[[], None]) -> None:
        self._client = client
        self._require_running = require_running
        self._streams: set[Stream] = set()
        self._cancelled = threading.Event()

    def result(self, prompt: Prompt, options: Options) -> Result | OptimistError:
        """Makes one call; returns its failure, and raises if no other call can succeed."""
        stream = self._client.generate(prompt, **options)
        self._streams.add(stream)
        if self._cancelled.is_set():
            stream.cancel()
        try:
            return stream.result()
        except OptimistError as error:
            self._require_running()
            return error
        finally:
            self._streams.discard(stream)

    def cancel(self) -> None:
        """Ends the calls in progress and those that begin later."""
        self._cancelled.set()
        for stream in self._streams.copy():
            stream.cancel()


def _require_valid(requests: Sequence[Request]) -> None:
    for index, (prompt, options) in enumerate(requests):
        try:
            generate_request(prompt, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"prompt {index}: {error}") from None


def _results(futures: Sequence["Future[Result | OptimistError]"]) -> list[Result]:
    outcomes = [future.result() for future in futures if not future.cancelled()]
    results = [None if isinstance(each, OptimistError) else each for each in outcomes]
    errors = {index: each for index, each in enumerate(outcomes) if isinstance(each, OptimistError)}
    if errors:
        raise BatchError(results, errors)
    return [each for each in results if each is not None]
