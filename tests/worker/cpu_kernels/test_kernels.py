"""The kernels compute what plain PyTorch does, in each instruction set that this machine has."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.batch.slot_table import SlotTable
from optimist_worker.core.lookup import LOOK_UP, NO_CURSOR, Looking, Predictions, look_up
from optimist_worker.core.operation import Operation
from optimist_worker.core.plan import Admission
from optimist_worker.core.recurrence.scan import REPLAY, SCAN, DeltaTokens, Updates, replay, scan
from optimist_worker.core.recurrence.walk import walk_paths, walk_trees
from optimist_worker.model.fused import LAYERS, LayerStack, LlamaLayer
from optimist_worker.model.kernel_check import check_kernels, replaced_kernels
from optimist_worker.model.linear import PanelLinear
from optimist_worker.model.model import load_model
from optimist_worker.model.operations import make_panels
from optimist_worker.model.rounding import Bits, round_weight
from tests.worker.acceptance.choice_case import SAMPLING, assert_as_plain
from tests.worker.attention.attention_case import BatchRow, Case, Shape, make_case
from tests.worker.attention.test_attention import (  # noqa: F401
    attend,
    test_bfloat16_differs_by_rounding,
    test_heads_may_share_keys_and_differ_in_size,
    test_padding_is_zero_and_changes_nothing,
    test_random_batches,
    test_rows_are_bit_for_bit_the_same_alone_and_in_a_batch,
    test_softcap_and_sinks,
    test_what_a_row_must_not_read_may_be_anything,
)
from tests.worker.step import GREEDY, build_runner, generate

PROMPT = [5, 40, 7, 7, 31, 12]
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("each_target")


@pytest.mark.parametrize(
    ("window", "num_threads", "dtype"), [(None, 1, torch.bfloat16), (100, 2, torch.float32)]
)
def test_tokens_are_bit_for_bit_the_same_in_chunks_of_any_size(
    window: int | None, num_threads: int, dtype: torch.dtype
) -> None:
    """A draft that is verified attends as the same token would that is decoded."""
    case = make_case([BatchRow(0, 210)], Shape(6, 2, 64, 64), dtype)
    together = attend(case, window=window)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for start, end in ((0, 1), (0, 64), (63, 65), (100, 117), (190, 200), (209, 210)):
            rows, query = [BatchRow(start, end - start)], case.query[:, :, start:end]
            chunk = Case(case.shape, rows, case.tables, case.pool, query)
            assert torch.equal(attend(chunk, window=window), together[start:end])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("depth", "width"), [(2, 1), (578, 97), (130, 640)])
def test_products_are_right_and_the_same_beside_any_rows(
    depth: int, width: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(depth)
    inputs, weight, residual = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((31, depth), (width, depth), (31, width))
    )
    bias = torch.randn(width, generator=generator)
    panels = make_panels(weight)
    layer = PanelLinear(panels, bias)
    exact = inputs.double() @ weight.double().T + bias
    for found, wanted in (
        (layer(inputs), exact),
        (layer.add(inputs, residual.clone()), exact + residual),
        (PanelLinear(panels, None)(inputs), exact - bias),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=0.01, atol=2e-4 * depth**0.5)
    assert_the_same_beside_any_rows(layer, inputs)


def assert_the_same_beside_any_rows(layer: PanelLinear, inputs: torch.Tensor) -> None:
    together = layer(inputs)
    for start, end in ((0, 1), (3, 7), (3, 15), (11, 31), (30, 31)):
        assert torch.equal(layer(inputs[start:end]), together[start:end])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("depth", "width"), [(32, 1), (576, 97), (96, 640)])
def test_rounded_products_are_right_and_the_same_beside_any_rows(
    depth: int, width: int, bits: Bits
) -> None:
    generator = torch.Generator().manual_seed(depth)
    inputs, weight = (
        torch.randn(shape, generator=generator).bfloat16()
        for shape in ((31, depth), (width, depth))
    )
    rounded, bias = round_weight(weight, bits), torch.randn(width, generator=generator)
    layer = PanelLinear(rounded.panels, bias)
    assert (layer.bits, rounded.panels.group) == (bits, 32 if bits == 4 else depth)
    exact = inputs.double() @ rounded.weight.double().T + bias
    torch.testing.assert_close(layer(inputs).double(), exact, rtol=0.02, atol=0.02 * depth**0.5)
    assert_the_same_beside_any_rows(layer, inputs)


@given(
    st.lists(st.integers(-1, 7), max_size=8).map(
        lambda drawn: [min(parent, node - 1) for node, parent in enumerate(drawn)]
    ),
    st.integers(0, 3),
    st.sampled_from([5, 40, 128]),
)
def test_delta_rules_are_those_of_plain_pytorch(
    parents: list[int], num_others: int, value_dim: int
) -> None:
    generator = torch.Generator().manual_seed(value_dim)
    lengths, size = np.array([len(parents), num_others]), len(parents) + num_others
    trees = walk_trees(
        np.array([2, 1]), np.array([0, len(parents)]), lengths, [parents, [-1, 0, 1]], CPU
    )
    paths = walk_paths(np.array([2, 1]), np.array([0, len(parents)]), lengths, None, CPU)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    matrices = normal(2, 3, 4, 6, value_dim)
    tokens = DeltaTokens(
        normal(size, 2, 6),
        normal(size, 2, 6),
        normal(size, 4, value_dim),
        normal(size, 4).sigmoid(),
        normal(size, 4).sigmoid(),
    )
    updates = Updates(normal(2, size, 2, 6), normal(2, size, 4, value_dim), normal(2, size, 4))
    kernel, other = matrices.clone(), matrices.clone()
    assert SCAN.kernel_for(kernel) is not None
    for walk, moves in ((trees, False), (paths, True)):
        found = SCAN(kernel[1], tokens, walk, moves=moves)
        for one, wanted in zip(found, scan(other[1], tokens, walk, moves=moves), strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(kernel, matrices) is not (moves and size > 0)
    REPLAY(kernel, updates, paths)
    replay(other, updates, paths)
    torch.testing.assert_close(kernel, other, rtol=1e-4, atol=1e-4)


@given(st.randoms(use_true_random=False))
def test_lookups_are_those_of_plain_pytorch(rng: Random) -> None:
    table = SlotTable(
        6, 40, 4, 0, torch.device("cpu"), reads_sizes=True, vocab_size=3, eos_token_ids=[0]
    )
    predictions, cursors = Predictions(table), torch.full((7,), NO_CURSOR)
    slots = rng.sample(range(6), rng.randint(1, 4))
    for slot in slots:
        texts = [rng.choices(range(3), k=rng.randint(least, 40)) for least in (1, 0)]
        num_prompt = max(1, len(texts[0]) - rng.randint(0, 2))
        admission = Admission(slot, "", texts[0], num_prompt, GREEDY, predicted_token_ids=texts[1])
        table.admit(admission)
        predictions.admit(admission)
        predictions.cursors[slot] += rng.randint(0, 40)
        if index := rng.randint(0, len(texts[0])):
            cursors[slot] = index - 1 - len(texts[0])
    rows = torch.tensor(slots)
    limits = torch.tensor(rng.choices(range(5), k=len(slots)))
    looking = Looking(rows, table.gather(rows), limits, 5, 40)
    kernel, others = LOOK_UP.kernel_for(table.token_ids), (cursors.clone(), deepcopy(predictions))
    assert kernel is not None
    plain = look_up(table.token_ids, looking, cursors, predictions)
    found = kernel(table.token_ids, looking, *others)
    for wanted, got in zip(plain[:3], found[:3], strict=True):
        assert wanted.tolist() == got.tolist()
    for row, left in enumerate(plain.num_tokens.tolist()):
        assert plain.token_ids[row, :left].tolist() == found.token_ids[row, :left].tolist()
    assert cursors.tolist() == others[0].tolist()
    assert predictions.cursors.tolist() == others[1].cursors.tolist()


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_choices_are_those_of_plain_pytorch(sampling: dict[str, Any]) -> None:
    from optimist_worker.cpu_kernels import launch

    sizes = [(3, torch.float32), (97, torch.bfloat16), (5003, torch.float32)]
    # Many equal numbers, and parts of several threads.
    sizes += [(49152, torch.bfloat16)] * ("top_p" in sampling)
    for vocab_size, dtype in sizes:
        assert_as_plain(launch.choose, vocab_size, dtype, 6, sampling)


@pytest.mark.parametrize(
    ("family", "is_one_call", "dtype"),
    [
        ("llama", True, "float32"),
        ("qwen2", True, "bfloat16"),
        ("qwen3", True, "float32"),
        ("gemma2", False, "bfloat16"),
        ("gemma3", False, "float32"),
    ],
)
def test_texts_are_those_of_single_operations_and_of_plain_pytorch(
    family: str,
    is_one_call: bool,
    dtype: str,
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bfloat16, where plain PyTorch rounds otherwise, only of single operations."""
    runner = build_runner(checkpoint(family), dtype)
    parts = list(runner.engine.model.module.modules())
    layers = [part for part in parts if isinstance(part, LlamaLayer)]
    assert {layer.addresses is not None for layer in layers} == {is_one_call}
    assert any(isinstance(part, LayerStack) for part in parts) == (family != "gemma3")
    text = generate(runner, PROMPT, 12, chunk=4)
    monkeypatch.setattr(LAYERS, "is_replaced", True)
    assert generate(runner, PROMPT, 12, chunk=4) == text
    if dtype == "float32":
        monkeypatch.setattr(Operation, "kernel_for", lambda self, inputs: None)
        assert generate(build_runner(checkpoint(family), dtype), PROMPT, 12) == text


def test_text_in_bfloat16_is_the_same_with_drafts(checkpoint: Callable[[str], Path]) -> None:
    """Whatever is verified together, each token is computed as if it were decoded alone."""
    runner = build_runner(checkpoint("llama"), "bfloat16")
    truth = generate(runner, PROMPT, 40)
    for width, right in ((2, 5), (12, 9), (30, 40)):

        def predict(output: list[int], right: int = right) -> list[int]:
            expected = truth[: len(output) + right]
            return [*expected, *([1] * (60 - len(expected)))]

        assert generate(runner, PROMPT, 40, predict=predict, width=width, chunk=4) == truth


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", "bfloat16"), ("gemma2", "float32"), ("qwen3_5", "float32")]
)
def test_no_kernel_is_replaced(
    family: str, dtype: str, checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    check_kernels(load_model(str(checkpoint(family)), dtype, "cpu"), 16)
    assert replaced_kernels() == [], caplog.text
