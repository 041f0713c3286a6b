"""Small models of a config's own kind, with random weights: a pass through one costs next to
nothing, and computes by the same code as the large one."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM

SHORTEST_WINDOW = 6
"""Of windows and chunks of attention, so that they matter to a short text."""
_MOST_WEIGHTS = 200_000_000
_MOST_LAYERS = 8
_LEAST_LAYERS = 4
_MOST = {"vocab_size": 256, "num_experts": 16, "num_local_experts": 16, "n_routed_experts": 16}
_MOST |= {"zero_expert_num": 8, "first_k_dense_replace": 1, "num_dense_layers": 1}
_MOST |= {"vocab_size_per_layer_input": 256}
_INNER = ("intermediate", "ffn_dim", "ffn_hidden", "n_inner")
_INNER_SIZE = 32
_WINDOWS = ("window", "chunk")


def shrink(config: Any) -> Any:
    """Returns a config of the same kind with few layers and heads, and short windows.

    What decides how something is computed stays: the sizes of heads, rotary parameters, kinds of
    layers, factors.
    """
    small = copy.deepcopy(config)
    if hasattr(small, "quantization_config"):
        del small.quantization_config
    for part in _parts(small):
        _shrink_layers(part)
        _shrink_width(part)
        _shrink_others(part)
    return small


def build_miniature(config: Any, attention: str) -> Any:
    """Returns a model of a config that `shrink` has returned, in float32 on the CPU.

    Weights are as wide as what they are multiplied with allows, so that every token depends on
    those before it. Raises ValueError if there are many weights nevertheless.
    """
    auto_model: Any = AutoModelForCausalLM
    with torch.device("meta"):
        outline = auto_model.from_config(config, trust_remote_code=False)
    number = sum(weight.numel() for weight in outline.parameters())
    if number > _MOST_WEIGHTS:
        raise ValueError(f"a small model of its kind has {number} weights")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = auto_model.from_config(
            config, dtype=torch.float32, attn_implementation=attention, trust_remote_code=False
        )
        with torch.no_grad():
            for weight in module.parameters():
                if weight.ndim > 1:
                    weight.normal_(0.0, weight.shape[-1] ** -0.5)
                else:
                    weight.add_(torch.randn_like(weight), alpha=0.1)
    return module.eval().requires_grad_(False)


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part)


def _size(config: Any, name: str) -> int:
    """Returns a field of a config that may have another name there; 0 if it is not a size."""
    return _as_size(getattr(config, name, None))


def _as_size(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _shrink_layers(config: Any) -> None:
    """Keeps so many layers that there is one of each kind."""
    number = _size(config, "num_hidden_layers")
    lists = {
        key: value
        for key, value in vars(config).items()
        if isinstance(value, list) and len(value) == number
    }
    kept = min(number, _LEAST_LAYERS)
    for value in lists.values():
        kinds = [repr(item) for item in value]
        kept = max(kept, *(1 + kinds.index(kind) for kind in kinds))
    kept = min(kept, _MOST_LAYERS)
    if kept < number:
        config.num_hidden_layers = kept
        for key, value in lists.items():
            setattr(config, key, value[:kept])
        # What transformers keeps of layers that differ from the others, by their numbers.
        of_layers = getattr(vars(config).get("_heterogeneity_spec"), "per_layer_overrides", {})
        for index in [index for index in of_layers if index >= kept]:
            del of_layers[index]


def _shrink_width(config: Any) -> None:
    """Keeps a few heads of the same size."""
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    if not heads or not hidden:
        return
    kv_heads = _size(config, "num_key_value_heads") or heads
    new_kv_heads = min(kv_heads, 2)
    new_heads = new_kv_heads * max(1, min(heads // kv_heads, 2))
    # Without a size of its own, a head has its share of the width.
    width = hidden // heads if hidden % heads == 0 else 64
    for key, value in list(vars(config).items()):
        if type(value) is int and value == hidden:
            setattr(config, key, new_heads * width)
    config.num_attention_heads = new_heads
    if _size(config, "num_key_value_heads"):
        config.num_key_value_heads = new_kv_heads


def _shrink_others(config: Any) -> None:
    longest = _size(config, "max_position_embeddings")
    for key, value in [(key, _as_size(value)) for key, value in vars(config).items()]:
        if any(word in key for word in _INNER):
            most = _INNER_SIZE
        elif any(word in key for word in _WINDOWS) and (not longest or value < longest):
            most = SHORTEST_WINDOW
        else:
            most = _MOST.get(key, value)
        if value > most:
            setattr(config, key, most)
    if _size(config, "pad_token_id") >= (_size(config, "vocab_size") or 1):
        config.pad_token_id = 0
