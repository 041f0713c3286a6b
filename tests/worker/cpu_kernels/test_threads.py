"""Threads share the work of a pass, and what they compute does not depend on how many there are."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from optimist_worker.cpu_kernels import build
from optimist_worker.model.linear import PanelLinear
from optimist_worker.model.operations import make_panels
from tests.worker.step import build_runner, generate

PROMPT = [5, 40, 7, 7, 31, 12] * 18
kernels = build.load()
pytestmark = pytest.mark.skipif(kernels is None, reason="no C++ compiler, or no CPU for kernels")


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def layer_and_inputs(dtype: torch.dtype, width: int = 3072) -> tuple[PanelLinear, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight, inputs = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((width, 192), (5, 192))
    )
    return PanelLinear(make_panels(weight), None), inputs


@pytest.mark.usefixtures("_threads")
def test_logits_are_bit_for_bit_the_same_with_any_number_of_threads(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Products of the smallest models are too short to be shared.
    shutil.copytree(checkpoint("llama"), tmp_path, dirs_exist_ok=True)
    config = AutoConfig.from_pretrained(tmp_path)
    config.hidden_size, config.intermediate_size, config.head_dim = 256, 640, 64
    auto_model: Any = AutoModelForCausalLM
    auto_model.from_config(config).save_pretrained(tmp_path)
    runner = build_runner(tmp_path, "bfloat16")
    model, logits = runner.engine.model, list[torch.Tensor]()
    forward = model.module.forward

    def note(**inputs: object) -> object:
        output = forward(**inputs)
        logits.append(output.logits[0].clone())
        return output

    monkeypatch.setattr(model.module, "forward", note)
    found = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        logits.clear()
        text = generate(runner, PROMPT, 6, chunk=50)
        found.append((text, torch.cat(logits)))
    for text, same in found[1:]:
        assert text == found[0][0]
        assert torch.equal(same, found[0][1])


@pytest.mark.usefixtures("_threads")
def test_products_of_many_calls_are_right_while_threads_come_and_go() -> None:
    """Helpers sleep and wake between calls, some are sent to rest, and the number changes."""
    layer, inputs = layer_and_inputs(torch.float32)
    torch.set_num_threads(1)
    wanted = layer(inputs)
    for call in range(300):
        torch.set_num_threads(1 + call // 7 % 4)
        assert torch.equal(layer(inputs), wanted)


@pytest.mark.usefixtures("_threads")
def test_two_threads_may_compute_at_once() -> None:
    """Whoever comes second computes alone."""
    layer, inputs = layer_and_inputs(torch.bfloat16)
    wanted = layer(inputs)

    def compute(_: int) -> bool:
        torch.set_num_threads(3)
        return all(torch.equal(layer(inputs), wanted) for _ in range(50))

    with ThreadPoolExecutor(3) as executor:
        assert all(executor.map(compute, range(6)))


@pytest.mark.usefixtures("_threads")
def test_a_forked_process_has_threads_of_its_own() -> None:
    layer, inputs = layer_and_inputs(torch.float32)
    torch.set_num_threads(3)
    wanted = layer(inputs)
    if (child := os.fork()) == 0:
        signal.alarm(120)
        # Without a crew of its own it would wait for threads that it does not have.
        is_right = all(torch.equal(layer(inputs), wanted) for _ in range(20))
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
