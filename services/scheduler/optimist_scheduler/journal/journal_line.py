"""The lines of a journal: calls of the scheduler and what came of them, as JSON and back.

Columns are base64 of little-endian int32, as on the wire.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from optimist_common.columns import floats_from_bytes, floats_to_bytes, from_bytes, to_bytes
from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.plan import Plan, StepResult
from optimist_scheduler.core.requests.table import Request
from optimist_scheduler.core.requests.validate import NewRequest
from optimist_scheduler.core.values.arrays import Float32Array, Int32Array
from optimist_scheduler.core.values.logprobs import Logprobs
from optimist_scheduler.core.values.output import Ended, Finished, StepOutputs
from optimist_scheduler.core.values.stats import SchedulerStats
from optimist_scheduler.core.windows.window import Window, make_window

Json = dict[str, Any]

FORMAT = 7
"""Version of the lines; a log of another one is not replayed."""

_REQUEST_COLUMNS = (
    "prompt_token_ids",
    "predicted_token_ids",
    "num_predicted_tokens",
    "stop_token_ids",
    "output_token_ids",
)
_WINDOW_COLUMNS = ("token_ids", "parents", "positions")
PLAN_COLUMNS = ("slots", "num_known_tokens", "num_draft_tokens", "num_new_blocks", "new_blocks")
_RESULT_COLUMNS = (
    "slots",
    "lengths",
    "num_emitted_tokens",
    "token_ids",
    "num_drafted_tokens",
    "num_accepted_tokens",
    "draft_sources",
    "window_nodes",
    "accepted_nodes",
)


def column(values: Sequence[int] | npt.NDArray[np.integer]) -> str:
    """Writes a column."""
    return _encode(to_bytes(values))


def read_column(text: str) -> Int32Array:
    """Reads a column [num_rows]; raises ValueError if it is none."""
    return from_bytes(base64.b64decode(text, validate=True))


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _read_floats(text: str) -> Float32Array:
    return floats_from_bytes(base64.b64decode(text, validate=True))


def write_worker(
    config: EngineConfig, costs: Sequence[tuple[int, int]], drafter_us: Sequence[int]
) -> Json:
    """Writes what a scheduler knows of its worker."""
    return {"config": config.model_dump(), "costs": list(costs), "drafter_us": list(drafter_us)}


def read_worker(values: Json) -> tuple[EngineConfig, list[tuple[int, int]], list[int]]:
    """Reads what `write_worker` wrote."""
    costs = [(int(tokens), int(time)) for tokens, time in values["costs"]]
    return EngineConfig(**values["config"]), costs, [int(time) for time in values["drafter_us"]]


def write_request(new: NewRequest) -> Json:
    """Writes what is asked for."""
    values = {field.name: getattr(new, field.name) for field in fields(new)}
    values |= {name: column(values[name]) for name in _REQUEST_COLUMNS}
    return values | {"sampling": write_sampling(new.sampling)}


def read_request(values: Json) -> NewRequest:
    """Reads what `write_request` wrote."""
    columns = {name: read_column(values[name]).tolist() for name in _REQUEST_COLUMNS}
    return NewRequest(**(values | columns | {"sampling": read_sampling(values["sampling"])}))


def write_sampling(sampling: SamplingParams) -> Json:
    """Writes how logits become tokens."""
    # The keys of a JSON object would be text.
    return asdict(sampling) | {"logit_bias": list(sampling.logit_bias.items())}


def read_sampling(values: Json) -> SamplingParams:
    """Reads what `write_sampling` wrote."""
    return SamplingParams(**(values | {"logit_bias": dict(values["logit_bias"])}))


def write_window(window: Window) -> Json:
    """Writes a window."""
    return {
        "base": window.base,
        "token_ids": column(window.tree.token_ids),
        "parents": column([] if window.tree.parents is None else window.tree.parents),
        "positions": column(window.positions),
        "values": _encode(floats_to_bytes(window.values)),
    }


def read_window(values: Json) -> Window:
    """Reads what `write_window` wrote."""
    columns = {name: read_column(values[name]) for name in _WINDOW_COLUMNS}
    return make_window(values["base"], **columns, values=_read_floats(values["values"]))


def write_result(result: StepResult) -> Json:
    """Writes the result of one run."""
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    values |= {name: column(values[name]) for name in _RESULT_COLUMNS}
    values["errors"] = list(result.errors.items())
    values["logprobs"] = [
        [slot, *_sizes(told), *(_encode(part) for part in _logprob_parts(told))]
        for slot, told in result.logprobs.items()
    ]
    return values


def read_result(values: Json) -> StepResult:
    """Reads what `write_result` wrote."""
    columns = {name: read_column(values[name]) for name in _RESULT_COLUMNS}
    logprobs = {slot: _read_logprobs(told) for slot, *told in values["logprobs"]}
    errors = dict(values["errors"])
    return StepResult(**(values | columns | {"errors": errors, "logprobs": logprobs}))


def _read_logprobs(values: Sequence[Any]) -> Logprobs:
    first, number, of_prompt, of_output, logprobs, ids, of_ids = values
    floats = _read_floats(logprobs), _read_floats(of_ids)
    return Logprobs(first, number, of_prompt, of_output, floats[0], read_column(ids), floats[1])


def _sizes(told: Logprobs) -> list[int]:
    return [
        told.first_prompt_position,
        told.num_prompt_tokens,
        told.num_prompt_candidates,
        told.num_candidates,
    ]


def _logprob_parts(told: Logprobs) -> list[bytes]:
    return [
        floats_to_bytes(told.logprobs),
        to_bytes(told.candidate_token_ids),
        floats_to_bytes(told.candidate_logprobs),
    ]


def write_line(values: Json) -> str:
    """Writes a line, without its end."""
    # The core's numbers may be numpy's.
    return json.dumps(values, separators=(",", ":"), default=int)


def write_value(value: object) -> Json:
    """Writes what a call returned."""
    return {"out": _write(value)}


def write_error(error: Exception) -> Json:
    """Writes what a call raised."""
    return {"raised": {"error": type(error).__name__, "message": str(error)}}


def _write(value: object) -> object:
    match value:
        case None | bool():
            return value
        case Plan():
            return _write_plan(value)
        case StepOutputs():
            return _write_outputs(value)
        case Finished():
            return _write_finished(value)
        case Ended():
            return _write_ended(value)
        case list():
            return [_write(each) for each in value]
        case Request():
            return {
                "request_id": value.request_id,
                "arrival": value.arrival,
                "num_tokens": len(value.token_ids),
                "num_passes": value.num_passes,
                "num_losses": value.num_losses,
                "gain": value.gain,
                "digest": _digest([to_bytes(value.token_ids), value.prediction_marks]),
            }
        case SchedulerStats():
            return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"a journal has no form for {type(value).__name__}")


def _write_plan(plan: Plan) -> Json:
    columns = {name: column(getattr(plan, name)) for name in PLAN_COLUMNS}
    return {
        "sequence": plan.sequence,
        "num_repeats": plan.num_repeats,
        "released_slots": list(plan.released_slots),
        # Tokens are in earlier lines: a digest tells whether they are the same.
        "admissions": [
            {
                "slot": admission.slot,
                "request_id": admission.request.request_id,
                "num_tokens": len(admission.token_ids),
                "cached_blocks": column(admission.cached_blocks),
                "digest": _digest([to_bytes(admission.token_ids)]),
            }
            for admission in plan.admissions
        ],
        "windows": [
            {"slot": slot, "base": window.base, "digest": _digest(_window_parts(window))}
            for slot, window in plan.windows
        ],
        **columns,
    }


def _window_parts(window: Window) -> list[bytes]:
    parents = b"" if window.tree.parents is None else to_bytes(window.tree.parents)
    return [to_bytes(window.tree.token_ids), parents]


def _write_outputs(outputs: StepOutputs) -> Json:
    columns = (
        outputs.owners,
        outputs.handles,
        outputs.num_tokens,
        outputs.token_ids,
        outputs.num_accepted_tokens,
        outputs.draft_sources,
        outputs.observed_rows,
    )
    observed = outputs.observed_request_ids, outputs.earlier_token_ids
    ids = write_line({"observed": observed}).encode()
    told = list[bytes]()
    for one in outputs.logprobs:
        sizes = to_bytes([one.owner, one.handle, *_sizes(one.logprobs)])
        told += [sizes, *_logprob_parts(one.logprobs)]
    for where in outputs.positions:
        told += [to_bytes([where.owner, where.handle]), to_bytes(where.positions)]
    return {
        "num_rows": len(outputs.handles),
        "num_tokens": len(outputs.token_ids),
        "num_observed": len(outputs.observed_rows),
        "ended": [_write_ended(ended) for ended in outputs.ended],
        "digest": _digest([*(to_bytes(each) for each in columns), ids, *told]),
    }


def _write_ended(ended: Ended) -> Json:
    return {
        "owner": ended.owner,
        "handle": ended.handle,
        "request_id": ended.request_id,
        **_write_finished(ended.finished),
    }


def _write_finished(finished: Finished) -> Json:
    return asdict(finished) | {"reason": finished.reason.value}


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]
