"""EAGLE heads compute what was published, or say in a sentence what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from transformers import AttentionInterface, LlamaConfig, LlamaModel

from optimist_common.errors import SetupError
from optimist_training.drafters.heads import save_eagle
from optimist_worker.core.attention.paged_attention import AttentionBatch, KVPool, LayerSpec
from optimist_worker.drafters.heads.eagle import load_eagle
from optimist_worker.model.model import Model, load_model

HIDDEN, INNER, HEADS, KV_HEADS, DIM = 64, 48, 4, 2, 16
THETA, EPSILON = 5000.0, 1e-5
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "max_position_embeddings": 512,
}
Weights = dict[str, torch.Tensor]
T = 9


@pytest.fixture(scope="module")
def target(llama_path: Path) -> Model:
    return load_model(str(llama_path), "float64", "cpu")


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64) / 6


def layer(prefix: str, inputs: int = HIDDEN, *norms: str, bias: bool = False) -> Weights:
    weights = {
        "self_attn.q_proj.weight": random(HEADS * DIM, inputs),
        "self_attn.k_proj.weight": random(KV_HEADS * DIM, inputs),
        "self_attn.v_proj.weight": random(KV_HEADS * DIM, inputs),
        "self_attn.o_proj.weight": random(HIDDEN, HEADS * DIM),
        "mlp.gate_proj.weight": random(INNER, HIDDEN),
        "mlp.up_proj.weight": random(INNER, HIDDEN),
        "mlp.down_proj.weight": random(HIDDEN, INNER),
    }
    for name in ("post_attention_layernorm", *norms):
        weights[f"{name}.weight"] = 1 + random(HIDDEN)
    if bias:
        for name, size in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            weights[f"self_attn.{name}_proj.bias"] = random(size * DIM)
    return {prefix + key: value for key, value in weights.items()}


def first_kind(num_layers: int = 1, *, bias: bool = True) -> Weights:
    torch.manual_seed(0)
    weights = {"fc.weight": random(HIDDEN, 2 * HIDDEN)}
    if bias:
        weights["fc.bias"] = random(HIDDEN)
    for number in range(num_layers):
        norms = ["input_layernorm"] if number else []
        weights |= layer(f"layers.{number}.", HIDDEN, *norms, bias=bias)
    return weights


def third_kind(vocab_size: int) -> Weights:
    torch.manual_seed(0)
    weights = {"fc.weight": random(HIDDEN, 3 * HIDDEN), "norm.weight": 1 + random(HIDDEN)}
    weights["embed_tokens.weight"] = random(vocab_size, HIDDEN)
    weights |= layer("midlayer.", 2 * HIDDEN, "hidden_norm", "input_layernorm")
    weights["lm_head.weight"] = random(3, HIDDEN)
    weights["d2t"] = torch.tensor([4, 4, 90])
    weights["t2d"] = torch.zeros(vocab_size, dtype=torch.bool)
    return weights


def write(directory: Path, weights: Weights, **changes: Any) -> str:
    directory.mkdir(exist_ok=True)
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    return str(directory)


def run_llama(layers: Weights, hidden: torch.Tensor, norm: nn.Module) -> Any:
    """Runs layers of transformers' Llama without a last norm, and with another first one."""
    bias = "layers.0.self_attn.q_proj.bias" in layers
    number = sum("o_proj" in key for key in layers)
    changes = {"num_hidden_layers": number, "attention_bias": bias}
    llama: Any = LlamaModel(LlamaConfig.from_dict(CONFIG | changes)).double()
    llama.norm, llama.layers[0].input_layernorm = nn.Identity(), norm
    for layer in llama.layers:
        layer.self_attn.o_proj.bias = None
    inputs = {"inputs_embeds": hidden[None], "use_cache": False}
    return functional_call(llama, layers, kwargs=inputs).last_hidden_state[0]


def normalise(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(states, (HIDDEN,), weight, EPSILON)


def compute_first(weights: Weights, embeddings: torch.Tensor, features: torch.Tensor) -> Any:
    both = torch.cat((embeddings, features), 1)
    hidden = functional.linear(both, weights["fc.weight"], weights.get("fc.bias"))
    layers = {key: value for key, value in weights.items() if key.startswith("layers.")}
    return run_llama(layers, hidden, nn.Identity())


def compute_third(weights: Weights, embeddings: torch.Tensor, hidden: torch.Tensor) -> Any:
    layer = {f"layers.0.{k[9:]}": w for k, w in weights.items() if k.startswith("midlayer.")}
    both = (
        normalise(embeddings, layer.pop("layers.0.input_layernorm.weight")),
        normalise(hidden, layer.pop("layers.0.hidden_norm.weight")),
    )
    norm = nn.Identity()
    norm.register_forward_hook(lambda *_: torch.cat(both, 1)[None])
    return run_llama(layer, hidden, norm)


def inputs(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    token_ids = torch.randint(0, 300, (T,))
    return token_ids, torch.arange(T), torch.randn(T, size, dtype=torch.float64)


def attend(
    module: Any, query: Any, key: Any, value: Any, mask: Any, *, paged: list[int], **_: Any
) -> Any:
    """Notes the layer in the batch, which comes as the keyword `paged`."""
    paged.append(module.layer_idx)
    compute = functional.scaled_dot_product_attention
    return compute(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2), None


AttentionInterface.register("test_eagle_head", attend)


def run(head: Any, token_ids: torch.Tensor, positions: torch.Tensor, features: torch.Tensor) -> Any:
    layers: list[int] = []
    head.set_attn_implementation("test_eagle_head")
    found = head.run(token_ids[None], positions[None], features[None], paged=layers)[0]
    assert layers == list(range(len(head.layers)))
    return found


@pytest.mark.parametrize(("prefix", "num_layers", "bias"), [("", 1, True), ("model.", 2, False)])
def test_first_kind_computes_the_published_definition(
    tmp_path: Path, target: Model, prefix: str, num_layers: int, bias: bool
) -> None:
    weights = first_kind(num_layers, bias=bias)
    named = {prefix + key: value for key, value in weights.items()}
    head = load_eagle(write(tmp_path, named, num_hidden_layers=num_layers), target)
    token_ids, positions, features = inputs(HIDDEN)
    embeddings = target.module.get_input_embeddings().weight[token_ids]
    expected = compute_first(weights, embeddings, features)
    hidden = run(head, token_ids, positions, features)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    lm_head = target.module.get_output_embeddings().weight
    torch.testing.assert_close(head.logits(hidden), hidden @ lm_head.T)
    assert head.target_layers is None
    assert head.layers == [LayerSpec(KV_HEADS, DIM, DIM)] * num_layers


def test_third_kind_computes_the_published_definition(tmp_path: Path, target: Model) -> None:
    weights = third_kind(target.vocab_size)
    head = load_eagle(write(tmp_path, weights, draft_vocab_size=3), target)
    token_ids, positions, features = inputs(3 * HIDDEN)
    embeddings = weights["embed_tokens.weight"][token_ids]
    expected = compute_third(weights, embeddings, features @ weights["fc.weight"].T)
    hidden = run(head, token_ids, positions, features)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    # Features of its own are not projected.
    again = run(head, token_ids, positions, hidden)
    expected = compute_third(weights, embeddings, hidden)
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=1e-5)
    # A reduced vocabulary becomes the target's.
    hidden = random(4, HIDDEN)
    logits = head.logits(hidden)
    assert logits.shape == (4, target.vocab_size)
    known = [4, 5, 92]
    expected = normalise(hidden, weights["norm.weight"]) @ weights["lm_head.weight"].T
    torch.testing.assert_close(logits[:, known], expected, rtol=1e-5, atol=1e-5)
    others = torch.ones(target.vocab_size, dtype=torch.bool)
    others[known] = False
    assert bool((logits[:, others] == float("-inf")).all())


def test_third_kind_says_which_target_layers_it_reads(tmp_path: Path, target: Model) -> None:
    weights = third_kind(target.vocab_size)
    key = "eagle_aux_hidden_state_layer_ids"
    # The target has four layers: the inputs of layers 2, 2 and 1.
    given: list[dict[str, Any]] = [{}, {"eagle_config": {key: [0, 2, 3]}}, {key: [1, 3, 4]}]
    heads = [load_eagle(write(tmp_path, weights, **config), target) for config in given]
    assert [head.target_layers for head in heads] == [(1, 1, 0), (0, 2, 3), (0, 2, 3)]
    with pytest.raises(SetupError, match="layers"):
        load_eagle(write(tmp_path, weights, **{key: [1, 3, 5]}), target)


@pytest.mark.parametrize("is_reduced", [False, True])
def test_saved_head_loads_again(tmp_path: Path, target: Model, is_reduced: bool) -> None:
    weights = first_kind(2)
    if is_reduced:
        weights |= {"d2t": torch.tensor([4, 4, 90]), "lm_head.weight": random(3, HIDDEN)}
    head = load_eagle(write(tmp_path / "one", weights, num_hidden_layers=2), target)
    save_eagle(head, tmp_path / "two", torch.float64)
    # Norms and biases are stored in float32, of which they hold no more here.
    again = load_eagle(str(tmp_path / "two"), target)
    given = inputs(HIDDEN)
    hidden, expected = run(again, *given), run(head, *given)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(again.logits(hidden), head.logits(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["two layers", "third"])
def test_fused_head_computes_the_same(tmp_path: Path, llama_path: Path, kind: str) -> None:
    target = load_model(str(llama_path), "float32", "cpu")
    is_third = kind == "third"
    num_layers = 1 if is_third else 2
    weights = third_kind(target.vocab_size) if is_third else first_kind(num_layers)
    path = write(tmp_path, weights, num_hidden_layers=num_layers)
    token_ids, positions, features = inputs(3 * HIDDEN if is_third else HIDDEN)
    results = []
    for is_fused in (False, True):
        head = load_eagle(path, target)
        if is_fused:
            head.fuse(None)
        pool = KVPool(head.layers, 1, T, target.dtype, target.device)
        batch = AttentionBatch.of_row(pool, 0, T)
        with torch.inference_mode():
            states = features.to(target.dtype)[None]
            hidden = head.run(token_ids[None], positions[None], states, paged=batch)
            results.append((hidden, head.logits(hidden[0])))
        kinds = [type(layer).__name__ for layer in head.modules()]
        assert kinds.count("LlamaLayer") == (num_layers if is_fused and not is_third else 0)
        assert ("Linear" in kinds) != is_fused
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ({"fc.weight": None}, {}, "first.fc.weight"),
        ({"fc.weight": torch.zeros(HIDDEN, HIDDEN)}, {}, "another target"),
        ({"d2t": torch.zeros(7, dtype=torch.int64)}, {}, "d2t"),
        ({"layers.1.mlp.up_proj.weight": torch.zeros(INNER, HIDDEN)}, {}, "does not know"),
        ({}, {"hidden_size": 32}, "hidden_size is 32 and the target's 64"),
        ({}, {"rms_norm_eps": "small"}, r"config\.json: rms_norm_eps is .* above 0"),
        (None, {"d2t": [0, 0, 999]}, "names tokens that the target does not have"),
    ],
)
def test_what_does_not_fit_is_one_clear_sentence(
    tmp_path: Path, target: Model, change: Weights | None, config: dict[str, Any], message: str
) -> None:
    """A head of the first kind with changes, or of the third one with another vocabulary."""
    if change is None:
        weights = third_kind(target.vocab_size) | {"d2t": torch.tensor(config["d2t"])}
    else:
        changed = first_kind() | change
        weights = {key: value for key, value in changed.items() if value is not None}
    with pytest.raises(SetupError, match=rf"^--drafter-model: .*{message}") as raised:
        load_eagle(write(tmp_path, weights, **config), target)
    assert "\n" not in str(raised.value)
