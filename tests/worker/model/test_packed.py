"""Checkpoints that are quantised already: what they mean, on top of it, and what is refused."""

from pathlib import Path

import pytest
import torch

from optimist_worker.model.model import load_model
from tests.checkpoints import tiny_checkpoint
from tests.worker.model.packing import FORMS, pack_checkpoint


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_what_the_files_mean(form: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path, "qwen2", tie_word_embeddings=True, intermediate_size=160)
    plain = pack_checkpoint(source, tmp_path / "packed", FORMS[form])
    wanted = load_model(str(plain), "float64", "cpu").module.state_dict()
    for dtype, exact in (("float64", torch.float64), ("float32", torch.float32)):
        found = load_model(str(tmp_path / "packed"), dtype, "cpu").module.state_dict()
        assert found.keys() == wanted.keys()
        for name, weight in found.items():
            # Single precision rounds products of scales in double precision once.
            assert torch.equal(weight, wanted[name].to(exact)), name
