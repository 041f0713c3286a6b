"""Stages of every family, one after the other in this process, and verdicts on their way."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_common.errors import SetupError
from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.attention.paged_attention import AttentionBatch, KVPool
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.execution.stage_pass import (
    StagePass,
    StageVerdict,
    read_verdict,
    write_verdict,
)
from optimist_worker.model.division import StagePosition
from optimist_worker.model.model import Model, load_model
from tests.checkpoints import ATTENTION_FAMILIES

NUM_TOKENS = 40


def make_batch(model: Model) -> FlatBatch:
    """A prompt of some tokens, on blocks of its own."""
    indices = torch.arange(NUM_TOKENS)
    attention = AttentionBatch(
        pool=KVPool(model.layers, 4, 16, model.dtype, model.device),
        slot_mapping=indices,
        query_starts=torch.tensor([0, NUM_TOKENS]),
        num_computed_tokens=torch.tensor([0]),
        tree_starts=torch.tensor([NUM_TOKENS]),
        positions=indices,
        ancestors=None,
        block_tables=torch.arange(4, dtype=torch.int32)[None],
        max_num_queries=NUM_TOKENS,
        max_num_keys=NUM_TOKENS,
    )
    return FlatBatch(5 + indices, indices, indices, attention)


def load_stage(path: Path, index: int, number: int, *, dummy_weights: bool = False) -> Model:
    position = StagePosition(index, number)
    return load_model(str(path), "float32", "cpu", stage=position, dummy_weights=dummy_weights)


def run_stages(stages: list[Model]) -> torch.Tensor:
    hidden = None
    for stage in stages:
        assert stage.cut is not None
        hidden = StagePass(stage, stage.cut).run(make_batch(stage), hidden)
    assert hidden is not None
    return hidden


@pytest.mark.parametrize("family", ATTENTION_FAMILIES)
def test_stages_compute_what_the_model_computes(
    checkpoint: Callable[[str], Path], family: str
) -> None:
    path = checkpoint(family)
    whole = load_model(str(path), "float32", "cpu")
    expected = whole.forward(make_batch(whole))
    for number in (2, 3):
        stages = [load_stage(path, index, number) for index in range(number)]
        assert torch.equal(run_stages(stages), expected)
        # A stage has weights and keys and values of its own layers only.
        assert all(stage.num_parameters < 0.8 * whole.num_parameters for stage in stages)
        kept = [spec for stage in stages for spec in stage.layers if spec.num_kv_heads]
        assert kept == whole.layers
        assert all(stage.vocab_size == whole.vocab_size for stage in stages)


def test_dummy_weights_are_those_of_the_whole_model(llama_path: Path) -> None:
    whole = load_model(str(llama_path), "float32", "cpu", dummy_weights=True)
    stages = [load_stage(llama_path, index, 2, dummy_weights=True) for index in range(2)]
    assert torch.equal(run_stages(stages), whole.forward(make_batch(whole)))


def test_more_stages_than_layers_are_refused(llama_path: Path) -> None:
    with pytest.raises(SetupError, match=r"--pipeline-parallel-size: .* has 4 layers; choose at"):
        load_stage(llama_path, 0, 5)


@settings(max_examples=30)
@given(
    num_rows=st.integers(0, 5),
    depth=st.integers(0, 4),
    has_path=st.booleans(),
    scored_shape=st.none() | st.tuples(st.integers(0, 3), st.integers(1, 5)),
    faults=st.dictionaries(st.integers(0, 9), st.text(max_size=20)),
)
def test_a_verdict_is_read_as_it_was_written(
    num_rows: int,
    depth: int,
    has_path: bool,
    scored_shape: tuple[int, int] | None,
    faults: dict[int, str],
) -> None:
    generator = torch.Generator().manual_seed(num_rows + 10 * depth)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(0, 2**31 - 1, shape, generator=generator)

    verdict = Verdict(
        token_ids=draw(num_rows, 1 + depth),
        num_accepted=draw(num_rows),
        path=draw(num_rows, depth) if has_path else None,
        is_finite=draw(num_rows) % 2 == 0,
    )
    scored = None if scored_shape is None else draw(*scored_shape).int()
    read = read_verdict(write_verdict(StageVerdict(7, verdict, scored, "", faults, 2**32 - 1)))
    assert (read.number, read.failure, read.faults) == (7, "", faults)
    assert read.drafts == 2**32 - 1
    assert read.verdict is not None
    found = [read.scored, *(getattr(read.verdict, field.name) for field in fields(Verdict))]
    written = [scored, *(getattr(verdict, field.name) for field in fields(Verdict))]
    for one, other in zip(found, written, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_a_failure_comes_instead_of_a_verdict() -> None:
    read = read_verdict(write_verdict(StageVerdict(3, None, failure="stage 1: no memory")))
    assert (read.number, read.verdict, read.failure) == (3, None, "stage 1: no memory")
