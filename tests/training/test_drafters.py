"""Runs that train drafters, and the chains that an EAGLE head is trained on."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from optimist_common.errors import SetupError
from optimist_training import loop
from optimist_training.drafters.command import main
from optimist_training.drafters.eagle_training import NAME, Chain
from optimist_training.drafters.target import Target
from optimist_worker.drafters.heads.eagle import EagleHead, FusedLayer, load_eagle
from optimist_worker.drafters.heads.medusa import load_medusa
from optimist_worker.model.model import load_model
from tests.checkpoints import VOCAB_SIZE, tiny_checkpoint


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_checkpoint(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture
def data(tmp_path: Path) -> str:
    torch.manual_seed(3)
    path = tmp_path / "data.jsonl"
    with path.open("w") as file:
        for _ in range(40):
            token_ids = torch.randint(3, VOCAB_SIZE, (20,)).tolist()
            file.write(json.dumps({"token_ids": token_ids, "num_prompt_tokens": 4}) + "\n")
    return str(path)


def arguments(kind: str, target: Path, data: str, out: Path, *more: str) -> list[str]:
    files = [kind, "--model", str(target), "--data", data, "--out", str(out)]
    return [*files, "--batch-tokens", "60", "--stored", "float32", "--eval-examples", "2", *more]


def weights(out: Path, kind: str) -> Path:
    return out / ("medusa_lm_head.safetensors" if kind == "medusa" else "model.safetensors")


def load_heads(kind: str, out: Path, target_path: Path) -> Any:
    """Loads what was written as the worker does."""
    target = load_model(str(target_path), "float64", "cpu")
    if kind == "eagle":
        return load_eagle(str(out), target)
    return load_medusa(str(out), 64, VOCAB_SIZE, torch.float64, target.device)


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_a_reduced_vocabulary_is_of_the_commonest_tokens(
    kind: str, target_path: Path, tmp_path: Path
) -> None:
    """Trained on what the target says, the head drafts the tokens that completions have most."""
    path, out = tmp_path / "data.jsonl", tmp_path / "out"
    data = {"token_ids": [3, 4, 5, 9, 7, 7, 7, 8, 8, 6, 5, 6], "num_prompt_tokens": 4}
    line = json.dumps(data)
    path.write_text(f"{line}\n{line}\n")
    words = arguments(kind, target_path, str(path), out, "--steps", "3", "--bf16")
    assert main([*words, "--draft-vocab", "3"]) == 0
    token_ids = load_heads(kind, out, target_path).target_ids
    assert token_ids is not None
    assert token_ids.tolist() == [6, 7, 8]


@pytest.mark.parametrize("kind", ["medusa", "eagle", "draft"])
def test_the_worker_loads_what_is_trained_and_a_run_that_was_stopped_ends_as_one_that_was_not(
    kind: str,
    target_path: Path,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    words = arguments(kind, target_path, data, halves, "--steps", "6")
    assert main(arguments(kind, target_path, data, whole, "--steps", "6")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["depth"] for one in printed["unseen"]] == [4, 8]
    if kind == "draft":
        assert load_model(str(whole), "float64", "cpu").vocab_size == VOCAB_SIZE
    else:
        assert load_heads(kind, whole, target_path).target_ids is None
    ordinary, done = loop._step, 0

    def stopping(*some: Any) -> tuple[float, float]:
        nonlocal done
        done += 1
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return ordinary(*some)

    monkeypatch.setattr(loop, "_step", stopping)
    assert threading.current_thread() is threading.main_thread()
    assert main(words) == 130
    assert torch.load(halves / "training" / "state.pt", weights_only=True)["step"] == 3
    assert not weights(halves, kind).exists()
    with pytest.raises(SetupError, match="--seed: the run to resume had 0, not 1"):
        main([*words, "--resume", "--seed", "1"])
    assert main([*words, "--resume"]) == 0
    assert done == 6
    one, other = (load_file(weights(out, kind)) for out in (whole, halves))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_training_lowers_the_loss_of_what_it_repeats(target_path: Path, tmp_path: Path) -> None:
    """On one sequence over and over, the draft model learns to say what the target says there."""
    path = tmp_path / "data.jsonl"
    torch.manual_seed(5)
    line = json.dumps({"token_ids": torch.randint(3, VOCAB_SIZE, (24,)).tolist()})
    path.write_text(f"{line}\n{line}\n")
    out = tmp_path / "out"
    words = arguments("draft", target_path, str(path), out, "--steps", "80")
    assert main([*words, "--initial", "random", "--learning-rate", "0.01"]) == 0
    token_ids = torch.tensor([json.loads(line)["token_ids"]])
    with torch.no_grad():
        taught, learned = (
            Target(str(path)).model.module(input_ids=token_ids).logits.argmax(-1)
            for path in (target_path, out)
        )
    assert (taught == learned).float().mean() > 0.9


def test_wrong_options_are_named(target_path: Path, data: str, tmp_path: Path) -> None:
    for more, message in (
        (["--resume"], "--resume: .* holds no run"),
        (["--batch-tokens", "0"], "--batch-tokens"),
        (["--steps", "-1"], "--steps"),
        (["--draft-vocab", "0"], "--draft-vocab"),
        (["--data", "nowhere.jsonl"], "--data"),
        (["--model", "./nowhere"], "--model"),
        (["--start", "./nowhere"], "--drafter-model"),
    ):
        with pytest.raises(SetupError, match=message):
            main([*arguments("medusa", target_path, data, tmp_path / "out"), *more])


@pytest.fixture(autouse=True)
def _quiet_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


SIZE, VOCAB, T, LEVELS = 32, 20, 7, 3


def test_levels_equal_step_by_step_drafting() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": SIZE, "intermediate_size": 48, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, num_key_value_heads=2, num_hidden_layers=2)
    first = FusedLayer(config, bias=True)
    embedding, output = torch.randn(VOCAB, SIZE), torch.randn(VOCAB, SIZE)
    head = EagleHead(config, first, embedding, output, vocab_size=VOCAB).double()
    head.requires_grad_(False)
    token_ids = torch.randint(0, VOCAB, (1, T + LEVELS))
    features = torch.randn(1, T, SIZE, dtype=torch.float64)
    head.set_attn_implementation(NAME)
    chain, states, levels = Chain(), features, []
    for level in range(LEVELS):
        positions = torch.arange(T)[None] + level
        states = head.run(token_ids[:, level : level + T], positions, states, chain=chain)
        levels.append(states)

    head.set_attn_implementation("sdpa")
    for start in range(T):
        inputs, own = features[:, : start + 1], []
        for _ in range(LEVELS):
            length = inputs.shape[1]
            output = head.run(
                token_ids[:, :length], torch.arange(length)[None], inputs, attention_mask=None
            )
            own.append(output[0, -1])
            inputs = torch.cat([inputs, output[:, -1:]], dim=1)
        expected = torch.stack(own)
        found = torch.stack([level[0, start] for level in levels])
        torch.testing.assert_close(found, expected)
