import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from optimist_worker.conversion.calibration import Sample, choose_kept, main, read_samples
from optimist_worker.model.quantise import KEPT_FILE, kept_layers
from tests.checkpoints import VOCAB_SIZE, tiny_checkpoint

TINY_EDIT = Path(__file__).parents[3] / "models" / "tiny-edit"
FRAGILE = "model.layers.1.mlp.down_proj"


def test_layer_that_must_not_be_quantised_is_found(tmp_path: Path) -> None:
    auto_model: Any = transformers.AutoModelForCausalLM
    module = auto_model.from_pretrained(tiny_checkpoint(tmp_path, "llama"), dtype=torch.float32)
    module.eval().requires_grad_(False)
    # One input that is always 0 has weights next to which the others round to 0.
    module.model.layers[1].mlp.up_proj.weight[0] = 0.0
    module.get_submodule(FRAGILE).weight[:, 0] = 1e4
    rng = random.Random(2)
    samples = [Sample(rng.choices(range(3, VOCAB_SIZE), k=40), 10) for _ in range(4)]
    kept, share = choose_kept(module, 8, samples, 0.85)
    assert FRAGILE in kept
    assert len(kept) < 8
    assert share >= 0.85


def test_command_writes_what_quantise_reads(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, "llama")
    shutil.copy(TINY_EDIT / "tokenizer.json", path)
    texts = tmp_path / "texts.jsonl"
    # Bytes alone, whose ids are below the model's small vocabulary.
    texts.write_text(json.dumps({"prompt": "Z1Q", "text": "9Z8QX7"}) + "\n")
    (sample,) = read_samples(texts, path / "tokenizer.json")
    assert sample.start == 3
    assert max(sample.token_ids) < VOCAB_SIZE
    arguments = ["--model", str(path), "--texts", str(texts), "--agreement"]
    assert main([*arguments, "0"]) == 0
    assert json.loads((path / KEPT_FILE).read_text()) == {"int8": [], "int4": []}
    assert main([*arguments, "1.1"]) == 0
    module = transformers.AutoModelForCausalLM.from_pretrained(path)
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    assert len(kept_layers(str(path), 4)) == len(linears) - 1


@pytest.mark.parametrize(
    ("line", "words"),
    [("", "holds no text"), ("{}", "cannot read"), ("[1]", "cannot read"), ("x", "cannot read")],
)
def test_wrong_texts_are_refused(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(line)
    assert main(["--model", str(TINY_EDIT), "--texts", str(texts)]) == 2
    assert words in capsys.readouterr().err
