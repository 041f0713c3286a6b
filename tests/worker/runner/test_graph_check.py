"""Steps run eagerly where captured ones emit other tokens; usual ones are captured at start."""

import logging
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from optimist_common.errors import SetupError
from optimist_worker.execution.executor import (
    DeviceLostError,
    LocalExecutor,
    RunningStep,
    StepInput,
)
from optimist_worker.runner.graph_check import capture_steps, check_graphs
from optimist_worker.runner.runner import Runner
from tests.worker.step import build_runner, generate

PROMPT = [5, 40, 7, 7, 31, 12]


@pytest.fixture
def runner(llama_path: Path) -> Runner:
    """A runner that says it captures its steps."""
    runner = build_runner(llama_path)
    runner.engine.executor.uses_graphs = True
    return runner


def _replace_launch(monkeypatch: pytest.MonkeyPatch, captured: Any) -> None:
    """Has `captured(step, launch)` launch steps that run as graphs."""
    launch = LocalExecutor.launch

    def launch_either(self: LocalExecutor, step: StepInput) -> RunningStep:
        if self.uses_graphs:
            result: RunningStep = captured(step, lambda step: launch(self, step))
            return result
        return launch(self, step)

    monkeypatch.setattr(LocalExecutor, "launch", launch_either)


def test_graphs_that_are_right_stay(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Mock(side_effect=lambda step, launch: launch(step))
    _replace_launch(monkeypatch, captured)
    assert check_graphs(runner)
    assert runner.engine.executor.uses_graphs
    assert captured.call_count == 9
    assert runner._slots == {}


class Stale:
    """Replays what it has seen first, as a graph does that reads its inputs elsewhere."""

    def __init__(self) -> None:
        self.seen: dict[Any, torch.Tensor] = {}

    def __call__(self, step: StepInput, launch: Any) -> Any:
        running = launch(step)
        running.packed = self.seen.setdefault(step.bounds, running.packed)
        return running


def _raise(*_: Any) -> None:
    raise RuntimeError("no graph")


@pytest.mark.parametrize("captured", [Stale(), _raise], ids=["stale", "raises"])
def test_steps_run_eagerly_where_graphs_fail(
    captured: Any,
    runner: Runner,
    llama_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = generate(build_runner(llama_path), PROMPT, 12)
    _replace_launch(monkeypatch, captured)
    with caplog.at_level(logging.WARNING):
        assert not check_graphs(runner)
    assert "eager steps replace CUDA graphs, which is slower" in caplog.text
    runner.release_all()
    assert generate(runner, PROMPT, 12) == expected


def test_a_lost_device_names_the_setting(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: Any) -> None:
        raise DeviceLostError("an illegal memory access was encountered")

    _replace_launch(monkeypatch, lose)
    monkeypatch.setattr(runner.engine.executor, "check_failure", lose)
    for start in (check_graphs, capture_steps):
        with pytest.raises(SetupError, match="start with --no-cuda-graphs"):
            start(runner)


def _pads(path: Path) -> Runner:
    """A runner that captures its steps, and pads them."""
    padding = build_runner(path, reads_sizes=False)
    padding.engine.executor.uses_graphs = True
    return padding


def test_usual_steps_run_at_start_and_leave_no_trace(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    padding, seen = _pads(llama_path), list[StepInput]()

    def note(step: StepInput, launch: Any) -> Any:
        seen.append(step)
        return launch(step)

    _replace_launch(monkeypatch, note)
    capture_steps(padding, lambda: 0.0)
    usual = list(padding.engine.usual_sizes())
    assert [step.bounds for step in seen] == usual
    assert len(usual) > 5
    assert all(step.columns.shape == (3, step.bounds.num_rows) for step in seen)
    expected = generate(build_runner(llama_path), PROMPT, 12)
    assert generate(padding, PROMPT, 12) == expected


def test_there_is_a_time_for_captures_and_a_failure_ends_none(
    llama_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    padding, captured = _pads(llama_path), Mock(side_effect=_raise)
    _replace_launch(monkeypatch, captured)
    times = count(0.0, 6.0)
    capture_steps(padding, lambda: next(times))
    # At 6 and 12 seconds.
    assert captured.call_count == 2
    assert caplog.text.count("a usual step fails: no graph") == 2
    padding.engine.executor.uses_graphs = False
    capture_steps(padding)
    assert captured.call_count == 2
