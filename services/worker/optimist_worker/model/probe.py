"""What each attention layer of a model keeps per token, found by running it."""

from typing import Any

import torch
from transformers import AttentionInterface

from optimist_common.errors import SetupError, one_line
from optimist_worker.core.attention.kv import LayerSpec
from optimist_worker.core.attention.paged_attention import NAME

_PROBE = "optimist_probe"
_NOTHING = LayerSpec(0, 0, 0)


def probe_layers(
    name: str, flag: str, module: Any, own: range, text_config: Any
) -> list[LayerSpec]:
    """Runs one token through the model and notes what each attention layer would keep.

    A model with layers that do not come by the attention interface (linear attention, state
    spaces), or that does not hand our keyword on, shows it here and not in wrong tokens.

    Args:
        name: The model's.
        flag: Setting that named it.
        module: The model, or a stage of it.
        own: The layers that it has.
        text_config: Of the whole model.

    Returns:
        What each layer of the whole model keeps here; nothing, if it is another stage's.

    Raises:
        SetupError: It is such a model; the message begins with `flag`.
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
    inputs = {"input_ids": one_token}
    if own.start > 0:
        size = (1, 1, text_config.hidden_size)
        inputs = {"inputs_embeds": torch.zeros(size, dtype=module.dtype, device=module.device)}
    try:
        module.set_attn_implementation(_PROBE)
        with torch.inference_mode():
            module(**inputs, position_ids=one_token, use_cache=False, paged=seen)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise SetupError(f"{flag}: {name} cannot run on KV blocks: {one_line(error)}") from None
    module.set_attn_implementation(NAME)
    if sorted(seen) != list(own):
        raise SetupError(
            f"{flag}: {name} cannot be served: only {len(seen)} of its {len(own)} layers use "
            "the attention interface of transformers"
        )
    return [seen.get(index, _NOTHING) for index in range(text_config.num_hidden_layers)]
