"""A transformers decoder whose attention reads our blocks."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from optimist_common.errors import SetupError
from optimist_worker.core.attention import NAME, paged_attention
from optimist_worker.core.batch import Batch
from optimist_worker.core.kv import LayerSpec

logger = logging.getLogger(__name__)

_PROBE = "optimist_probe"
_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Model:
    """Weights, and what the worker has to know about them."""

    name: str
    module: Any
    layers: list[LayerSpec]
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: list[int]
    dtype: torch.dtype
    device: torch.device

    @property
    def num_parameters(self) -> int:
        """Number of weights, tied ones once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """Runs one pass; returns the logits asked for, `[num_logits, vocab_size]`."""
        output = self.module(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            logits_to_keep=batch.logits_indices,
            use_cache=False,
            paged=batch.attention,
        )
        return output.logits[0]


def load_model(name: str, dtype_name: str, device_name: str) -> Model:
    """Loads a directory or hub name with safetensors weights; runs no code of the checkpoint.

    Raises:
        SetupError: It is missing, incomplete, or of a kind whose attention is not the usual one.
    """
    _check_directory(name)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    device = _device(device_name)
    dtype: torch.dtype = getattr(torch, dtype_name)
    config = _load_config(name)
    text_config = config.get_text_config()
    _check_config(name, config, text_config)
    AttentionInterface.register(NAME, paged_attention)
    module = _load_weights(name, dtype).to(device).eval().requires_grad_(False)
    return Model(
        name=name,
        module=module,
        layers=_probe_layers(name, module, text_config.num_hidden_layers),
        vocab_size=module.get_output_embeddings().weight.shape[0],
        max_position_embeddings=_max_positions(text_config),
        eos_token_ids=_eos_token_ids(module),
        dtype=dtype,
        device=device,
    )


def _check_directory(name: str) -> None:
    path = Path(name).expanduser()
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if not path.is_dir():
        if looks_like_path or path.exists():
            raise SetupError(f"--model: {name} is not a directory; give one with a config.json")
        return
    if not (path / "config.json").is_file():
        raise SetupError(f"--model: {name} has no config.json; it is not a model of transformers")
    if not any(path.glob("*.safetensors")):
        raise SetupError(
            f"--model: {name} has no *.safetensors; convert the weights with save_pretrained"
        )


def _device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SetupError(
            f"--device: {name} is not on this machine ({torch.cuda.device_count()} CUDA devices); "
            "use --device cpu"
        )
    return device


def _load_config(name: str) -> Any:
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"--model: cannot read the config of {name}: {_line(error)}") from None


def _check_config(name: str, config: Any, text_config: Any) -> None:
    """Refuses what would load but compute something else than the model's own attention."""
    unsupported = None
    layer_types = set(getattr(text_config, "layer_types", None) or [])
    if getattr(config, "is_encoder_decoder", False):
        unsupported = "it is an encoder-decoder"
    elif layer_types - _LAYER_TYPES:
        unsupported = f"it has {', '.join(sorted(layer_types - _LAYER_TYPES))} layers"
    elif getattr(text_config, "use_bidirectional_attention", False):
        unsupported = "its attention is bidirectional"
    elif getattr(text_config, "num_kv_shared_layers", 0):
        unsupported = "its layers share keys and values"
    if unsupported is not None:
        raise SetupError(
            f"--model: {name} ({config.model_type}) cannot be served: {unsupported}; "
            "choose a decoder with causal full or sliding-window attention"
        )


def _load_weights(name: str, dtype: torch.dtype) -> Any:
    loader: Any = AutoModelForCausalLM
    try:
        module, report = loader.from_pretrained(
            name,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=NAME,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise SetupError(f"--model: cannot load {name}: {_line(error)}") from None
    except Exception as error:
        # safetensors' error for a damaged file derives from Exception alone.
        if type(error).__name__ != "SafetensorError":
            raise
        raise SetupError(f"--model: {name} has a damaged weight file: {_line(error)}") from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise SetupError(
            f"--model: {name} lacks {len(missing)} weights, such as {missing[0]}; "
            "save the whole model with save_pretrained"
        )
    return module


def _probe_layers(name: str, module: Any, num_layers: int) -> list[LayerSpec]:
    """Runs one token through the model and notes what each attention layer would keep.

    A model with layers that do not come by the attention interface (linear attention, state
    spaces), or that does not hand our keyword on, shows it here and not in wrong tokens.
    """
    seen: dict[int, LayerSpec] = {}

    def note(
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        paged: dict[int, LayerSpec],
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        index: int = layer.layer_idx  # type: ignore[assignment]
        paged[index] = LayerSpec(key.shape[1], key.shape[3], value.shape[3])
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    AttentionInterface.register(_PROBE, note)
    one_token = torch.zeros((1, 1), dtype=torch.int64, device=module.device)
    try:
        module.set_attn_implementation(_PROBE)
        with torch.inference_mode():
            module(input_ids=one_token, position_ids=one_token, use_cache=False, paged=seen)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise SetupError(f"--model: {name} cannot run on KV blocks: {_line(error)}") from None
    module.set_attn_implementation(NAME)
    if sorted(seen) != list(range(num_layers)):
        raise SetupError(
            f"--model: {name} cannot be served: only {len(seen)} of its {num_layers} layers use "
            "the attention interface of transformers"
        )
    return [seen[index] for index in range(num_layers)]


def _max_positions(config: Any) -> int:
    """Returns how many positions the model knows without changing its rotary frequencies.

    LongRoPE switches them for long sequences, which no mixed batch can do per row.
    """
    longest = int(getattr(config, "max_position_embeddings", 0) or 0)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        longest = int(rope.get("original_max_position_embeddings") or longest)
    return longest or 2**31 - 1


def _eos_token_ids(module: Any) -> list[int]:
    for config in (module.generation_config, module.config, module.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return [int(token_id) for token_id in (ids if isinstance(ids, list) else [ids])]
    return []


def _line(error: Exception) -> str:
    """Returns the first sentence or so of an error as one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
