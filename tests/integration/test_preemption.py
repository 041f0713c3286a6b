"""More requests than the KV memory holds: some are preempted, and none says anything else."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from openai import OpenAI

from tests.integration.edit import ask, edits
from tests.stack import BUNDLED_MODEL, Service, free_port

MODEL = ("--model", str(BUNDLED_MODEL))
# Two requests of this test fit, three do not.
NUM_KV_BLOCKS = "44"


@pytest.fixture
def addresses() -> Iterator[tuple[str, str]]:
    """Yields the gateway's URL and that of the scheduler's metrics."""
    with ExitStack() as stack:

        def start(name: str, *options: str) -> str:
            service = Service(name, *options)
            stack.callback(service.stop)
            return service.address

        proposer = start("proposer", *MODEL)
        memory = ("--num-kv-blocks", NUM_KV_BLOCKS, "--max-num-batched-tokens", "128")
        worker = start("worker", *MODEL, *memory, "--dtype", "float64")
        port = str(free_port())
        peers = ("--workers", worker, "--proposers", proposer)
        scheduler = start("scheduler", *peers, "--metrics-port", port)
        gateway = start("gateway", *MODEL, "--schedulers", scheduler)
        yield f"http://{gateway}/v1", f"http://127.0.0.1:{port}/metrics"


def num_preemptions(url: str) -> float:
    for line in httpx.get(url).text.splitlines():
        if line.startswith("optimist_scheduler_preemptions_total"):
            return float(line.split()[1])
    raise AssertionError("no such metric")


def test_preempted_requests_say_the_same(addresses: tuple[str, str]) -> None:
    url, metrics = addresses
    batch = [edit for edit in edits(40, seed=9) if 400 < len(edit.after) < 600][:6]
    assert len(batch) == 6
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        alone = [ask(client, edit, None).token_ids for edit in batch]
        assert num_preemptions(metrics) == 0
        predictions = [
            edit.before if number % 3 == 0 else None for number, edit in enumerate(batch)
        ]
        with ThreadPoolExecutor(len(batch)) as pool:
            pairs = zip(batch, predictions, strict=True)
            together = list(pool.map(lambda pair: ask(client, *pair).token_ids, pairs))
    assert together == alone
    assert num_preemptions(metrics) > 0
