"""What the front end knows of predictions: an account for each request that has some."""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from prometheus_client import Counter

from optimist_vllm.core.payload import PAYLOAD, Report

_PREDICTION_TOKENS = Counter(
    "optimist_plugin_prediction_tokens",
    "Tokens of predictions that were accepted, or drafted and never kept.",
    ["result"],
)
DRAFT_SECONDS = Counter(
    "optimist_plugin_draft_seconds", "Time that the scheduler took to find drafts, between passes."
)
_keys = count()


class RequestAccount:
    """Predicted tokens of all choices of a request to the server."""

    def __init__(self) -> None:
        self.key = next(_keys)
        self._choices: dict[str, tuple[int, int]] = {}
        _open[self.key] = self

    def record(self, request_id: str, num_accepted: int, num_rejected: int) -> None:
        """Takes the totals of one choice so far."""
        self._choices[request_id] = num_accepted, num_rejected

    @property
    def details(self) -> dict[str, int]:
        """What `usage.completion_tokens_details` says of the prediction."""
        accepted, rejected = map(sum, zip((0, 0), *self._choices.values(), strict=True))
        return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}

    def close(self) -> None:
        """Adds the totals to the metrics, at the end of the request."""
        for result, num_tokens in zip(("accepted", "rejected"), self.details.values(), strict=True):
            _PREDICTION_TOKENS.labels(result).inc(num_tokens)


_open: WeakValueDictionary[int, RequestAccount] = WeakValueDictionary()
"""Accounts by key, as long as whoever answers the request holds them."""


@cache
def install() -> None:
    """Wraps `OutputProcessor.process_outputs`, once: it takes the reports off the outputs."""
    from vllm.v1.engine.output_processor import OutputProcessor

    OutputProcessor.process_outputs = _wrap(OutputProcessor.process_outputs)


def _wrap(process: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(process)
    def process_outputs(
        self: Any, engine_core_outputs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        reported = [(each, _take_report(each)) for each in engine_core_outputs]
        result = process(self, engine_core_outputs, *args, **kwargs)
        for output, report in reported:
            if report is None:
                continue
            DRAFT_SECONDS.inc(report.draft_ns / 1e9)
            account = _open.get(report.key) if report.key is not None else None
            if account is not None:
                # Where a stop string was found, vLLM has cut the tokens after it.
                num_accepted = report.count_accepted(len(output.new_token_ids))
                account.record(output.request_id, num_accepted, report.num_rejected)
        return result

    return process_outputs


def _take_report(output: Any) -> Report | None:
    params = output.kv_transfer_params
    if not params or PAYLOAD not in params:
        return None
    report = Report(*params.pop(PAYLOAD))
    output.kv_transfer_params = params or None
    return report
