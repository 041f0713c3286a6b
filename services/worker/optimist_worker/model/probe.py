"""What each attention layer of a model keeps per token, seen from one token."""

from typing import Any

import torch
from transformers import AttentionInterface

from optimist_common.errors import SetupError
from optimist_common.model_files.tokenizer import explained
from optimist_worker.core.attention.paged_attention import NAME, LayerSpec
from optimist_worker.core.recurrence.layers import find_recurrent
from optimist_worker.model.fit import quiet
from optimist_worker.model.source import ModelSource

_PROBE = "optimist_probe"
_NOTHING = LayerSpec(0, 0, 0)


@torch.inference_mode()
def probe_layers(source: ModelSource, module: Any, own: range | None = None) -> list[LayerSpec]:
    """Runs one token through the model and notes what each attention layer would keep.

    A model with layers that do not come by the attention interface, and are no recurrent ones that
    we compute, shows it here and not in wrong tokens. Layers that our keyword does not reach get it
    from the model. A stage has its `own` layers of the whole, and keeps nothing of others.

    Raises SetupError if it is such a model.
    """
    text_config = source.text_config
    every = range(text_config.num_hidden_layers)
    own = every if own is None else own
    inputs = {"input_ids": torch.zeros((1, 1), dtype=torch.int64, device=module.device)}
    inputs["position_ids"] = inputs["input_ids"]
    if own.start > 0:
        size = (1, 1, text_config.hidden_size)
        del inputs["input_ids"]
        inputs["inputs_embeds"] = torch.zeros(size, dtype=module.dtype, device=module.device)
    seen: dict[int, LayerSpec] = {}
    unreached: list[Any] = []

    def note(
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **named: Any,
    ) -> tuple[torch.Tensor, None]:
        if "paged" not in named:
            unreached.append(layer)
        seen[layer.layer_idx] = LayerSpec(key.shape[1], key.shape[3], value.shape[3])
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    AttentionInterface.register(_PROBE, note)
    try:
        with quiet(), explained(f"{source.kind} cannot run on KV blocks"):
            module.set_attn_implementation(_PROBE)
            module(**inputs, use_cache=False, paged=None)
            if unreached:
                _hand_on(module, unreached)
                unreached = []
                module(**inputs, use_cache=False, paged=None)
    except SetupError:
        if seen:
            raise
    module.set_attn_implementation(NAME)
    recurrent = find_recurrent(module)
    if sorted([*seen, *recurrent]) != list(own) or unreached:
        more = " or are recurrent ones that the worker has" if recurrent else ""
        raise SetupError(
            f"{source.kind} cannot be served: it has {len(own)} layers, and "
            f"{len(seen) + len(recurrent)} use the attention interface of transformers{more}"
        )
    return [seen.get(index, _NOTHING) for index in every]


def _hand_on(module: Any, layers: list[Any]) -> None:
    """Brings the keyword `paged` of a model to layers that its decoder does not hand it to."""
    held: dict[str, Any] = {}

    def hold(part: Any, arguments: Any, named: dict[str, Any]) -> None:
        held["paged"] = named.get("paged")

    def bring(part: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, named | held

    module.base_model.register_forward_pre_hook(hold, with_kwargs=True)
    for layer in layers:
        layer.register_forward_pre_hook(bring, with_kwargs=True)
