"""What transformers computes otherwise than we do is refused, in one line; the rest is equal."""

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from optimist_worker.model.comparison import compare_kind
from optimist_worker.model.source import ModelSource
from tests.models.sweep import EQUAL, REFUSED, try_kind


@pytest.mark.parametrize(
    "name",
    [
        "stablelm with norms of heads",
        "phimoe with a window as long as its texts",
        "opt",
    ],
)
def test_kinds_on_the_attention_interface_have_the_text_of_transformers(name: str) -> None:
    outcome = try_kind(name)
    assert (outcome.verdict, outcome.reason) == (EQUAL, "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("diffllama", "layer 0 gives something else"),
        ("phimoe with a window", "layer 0 gives something else"),
        ("falcon", "does not use the attention interface"),
        ("bloom", "it has 2 layers, and 0 use the attention interface"),
        ("falcon_h1", "it has hybrid layers"),
        ("minimax", "it has 4 layers, and 2 use the attention interface"),
    ],
)
def test_kinds_that_compute_otherwise_are_refused_in_one_line(name: str, reason: str) -> None:
    outcome = try_kind(name)
    assert outcome.verdict == REFUSED
    assert reason in outcome.reason
    assert "\n" not in outcome.reason


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {"hidden_size": 16384, "num_attention_heads": 128, "num_key_value_heads": 8}),
        ("gpt2", {"n_embd": 1600, "n_head": 25, "n_layer": 48}),
        ("deepseek_v3", {}),
        ("gpt_oss", {}),
        ("gemma3_text", {}),
    ],
)
def test_a_large_config_is_compared_by_a_small_model(kind: str, fields: dict[str, Any]) -> None:
    compare_kind(ModelSource(kind, "--model", CONFIG_MAPPING[kind](**fields)))
