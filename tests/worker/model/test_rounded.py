"""A target with weights of 8 or 4 bits computes one function, that of the rounded weights."""

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from optimist_common.errors import SetupError
from optimist_worker.model.division import StagePosition
from optimist_worker.model.fused import LlamaLayer, fuse
from optimist_worker.model.linear import PanelLinear
from optimist_worker.model.model import load_model
from optimist_worker.model.operations import MULTIPLY
from optimist_worker.model.rounding import Bits, round_weight
from optimist_worker.runner.runner import Runner
from optimist_worker.service import process
from optimist_worker.settings import WorkerSettings, check_ranks
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import generate

PROMPT = random.Random(5).choices(range(3, VOCAB_SIZE), k=40)


def settings_of(path: Path, quantization: str, **options: object) -> WorkerSettings:
    given = {"model": str(path), "quantization": quantization, "device": "cpu", "drafter": "none"}
    return WorkerSettings.model_validate({**given, "num_kv_blocks": 96, **options})


def build(path: Path, quantization: str, **options: object) -> Runner:
    return process.build_runner(settings_of(path, quantization, **options))


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, columns), generator=generator).bfloat16()


@pytest.mark.parametrize(("bits", "error"), [(8, 0.012), (4, 0.11)])
def test_rounding_is_to_the_nearest(bits: Bits, error: float) -> None:
    weight = matrix(64, 96)
    rounded = round_weight(weight, bits)
    assert rounded.panels.bits == bits
    assert 0 < (rounded.weight - weight).norm() < error * weight.norm()
    # Of every group of 32, or every output, no more values than the bits tell apart.
    for values in rounded.weight.view(-1, 32 if bits == 4 else 96):
        assert len(values.unique()) <= 2**bits


@pytest.mark.parametrize(
    ("quantization", "family"), [("int8", "qwen2"), ("int4", "qwen3"), ("int4", "gemma3")]
)
def test_logits_of_one_token_passes_are_those_of_a_prompt(
    quantization: str, family: str, checkpoint: Callable[[str], Path]
) -> None:
    runner = build(checkpoint(family), quantization)
    module = runner.engine.model.module
    layers = [part for part in module.modules() if isinstance(part, LlamaLayer)]
    assert len(layers) == len(runner.engine.model.layers)
    assert {part.gate_up.bits for part in layers} == {int(quantization[3:])}
    assert module.get_output_embeddings().bits == 8
    output = generate(runner, PROMPT, 12)
    # The same tokens as one prompt, one token at a time: greedy choices agree but for ties.
    agreed = sum(
        generate(runner, PROMPT + output[:number], 1)[0] == output[number]
        for number in range(len(output))
    )
    assert agreed >= len(output) - 2


@pytest.mark.parametrize(("quantization", "width"), [("int8", 3), ("int4", 12)])
def test_greedy_text_is_the_same_with_predictions(
    quantization: str, width: int, llama_path: Path
) -> None:
    runner = build(llama_path, quantization)
    plain = generate(runner, PROMPT, 32)
    accepted: list[int] = []

    def predict(output: list[int]) -> list[int]:
        wrong = [3 + (token + 1) % 300 for token in plain[len(output) + 5 :]]
        return plain[len(output) : len(output) + 5] + wrong

    note = lambda result: accepted.extend(result.num_accepted_tokens)  # noqa: E731
    assert generate(runner, PROMPT, 32, predict=predict, width=width, note=note) == plain
    assert sum(accepted) > 10


def test_dummy_weights_and_a_drafter_of_the_same_weights(
    llama_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = build(llama_path, "int4", dummy_weights=True, drafter="quantised")
    assert len(generate(runner, PROMPT, 8)) == 8
    assert "layers of" in caplog.text
    assert "weights take" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "--quantization: int4 computes in bfloat16, not float32"),
        ({"device": "cuda"}, r"--quantization: int4 is for the CPU.*\(AWQ, GPTQ, fp8\)"),
    ],
)
def test_wrong_settings_say_what_to_choose(
    options: dict[str, str], message: str, llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SetupError, match=message):
        build(llama_path, "int4", **options)


def test_tensor_parallel_ranks_are_refused() -> None:
    settings = settings_of(Path("model"), "int8", tensor_parallel_size=2)
    with pytest.raises(SetupError, match="--quantization: int8 rounds whole matrices"):
        check_ranks(settings, "127.0.0.1")


def test_without_kernels_it_is_refused(llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MULTIPLY, "is_replaced", True)
    with pytest.raises(SetupError, match=r"--quantization: the CPU kernels .*choose none"):
        build(llama_path, "int8")


@pytest.mark.parametrize("stage", [0, 1])
def test_a_pipeline_stage_rounds_its_own_layers(stage: int, llama_path: Path) -> None:
    model = load_model(str(llama_path), "bfloat16", "cpu", stage=StagePosition(stage, 2))
    fuse(model, 4)
    layers = [part for part in model.module.modules() if isinstance(part, LlamaLayer)]
    assert [part.qkv.bits for part in layers] == [4] * (len(model.layers) // 2)
    output = model.module.get_output_embeddings()
    assert isinstance(output, PanelLinear) == (stage == 1)
