"""Services of different versions in one system, as during a rolling upgrade."""

from contextlib import ExitStack

import pytest
from openai import BadRequestError

from optimist.scheduler.v1 import scheduler_pb2
from tests.integration.edit import ask, connect, edits
from tests.stack import MODEL_FLAG, Service, start
from tests.versions.translating_proxy import UNKNOWN_FIELDS, TranslatingProxy, newer, older

CONNECT = "/optimist.scheduler.v1.SchedulerService/Connect"
# What only a later gateway asks for.
UNKNOWN_COMMAND = scheduler_pb2.ConnectRequest(command_id=2**40).SerializeToString()


@pytest.mark.parametrize("others", ["older", "newer"])
def test_versions_work_together(others: str) -> None:
    """Every service takes those that it talks to for another version."""
    is_older = others == "older"
    change = older() if is_older else newer
    first = {} if is_older else {CONNECT: UNKNOWN_COMMAND + UNKNOWN_FIELDS}
    proxies: list[TranslatingProxy] = []
    with ExitStack() as stack:

        def behind_proxy(service: Service) -> str:
            proxies.append(TranslatingProxy(service.address, change, first))
            stack.callback(proxies[-1].stop)
            return proxies[-1].address

        worker = behind_proxy(start(stack, "worker", *MODEL_FLAG, "--dtype", "float64"))
        proposer = behind_proxy(start(stack, "proposer", *MODEL_FLAG))
        peers = ("--workers", worker, "--proposers", proposer)
        scheduler = behind_proxy(start(stack, "scheduler", *peers))
        gateway = start(stack, "gateway", *MODEL_FLAG, "--schedulers", scheduler)
        client = stack.enter_context(connect(f"http://{gateway.address}"))
        for edit in edits(2, seed=3):
            plain, predicted = (ask(client, edit, text) for text in (None, edit.before))
            assert plain.text == edit.after
            assert predicted.token_ids == plain.token_ids
            # Before its first window comes, a row drafts from its prompt, which has the code too.
            assert predicted.by_source["target"] < len(plain.token_ids) / 2
            plain, predicted = (
                ask(client, edit, text, temperature=1.0, seed=5, max_tokens=40)
                for text in (None, edit.before)
            )
            assert plain.token_ids == predicted.token_ids
        # Nothing of another version lets a priority be ignored.
        body = {"priority": 1}
        with pytest.raises(BadRequestError, match="priority: ") as refused:
            client.completions.create(model="tiny-edit", prompt="def", extra_body=body)
        assert refused.value.param == (None if is_older else "priority")
    assert sum(proxy.num_changed for proxy in proxies) > 0
