"""Whether and how the layers of a model are divided among ranks."""

import math
from typing import Any

from optimist_common.errors import SetupError


def check_division(
    name: str, config: Any, number: int, flag: str = "--tensor-parallel-size"
) -> None:
    """Raises SetupError unless a model's layers can be divided among a number of ranks.

    Args:
        name: The model's.
        config: Its text config.
        number: Ranks that share each layer.
        flag: Setting that says so.
    """
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if heads % number or kv_heads % number:
        common = math.gcd(heads, kv_heads)
        sizes = [str(size) for size in range(1, common + 1) if common % size == 0]
        raise SetupError(
            f"{flag}: {number} ranks cannot share the {heads} attention heads and {kv_heads} KV "
            f"heads of {name}; choose {', '.join(sizes[:-1])}{' or ' * (len(sizes) > 1)}{sizes[-1]}"
        )
    if not config.base_model_tp_plan:
        raise SetupError(
            f"{flag}: transformers does not tell how to divide {name} ({config.model_type}); "
            "leave it at 1"
        )


def whole(weight: Any) -> Any:
    """Returns a weight as one tensor; called by all ranks that hold parts of it."""
    gather = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()
