"""Values of a GGUF file's header, with an account of those that were read."""

from typing import Any

from optimist_worker.conversion.files import GgufFile

# What changes nothing in the model's output.
_HARMLESS = {
    *("rope.scaling.finetuned", "tensor_data_layout"),
    # Of YaRN, which reads it.
    "rope.scaling.original_context_length",
}
# Values that mean that there is none of it.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "attention.sliding_window": (0,),
}


class Keys:
    """The keys of the file's architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        prefix = f"{file.architecture}."
        self._values = {
            name.removeprefix(prefix): _single(value)
            for name, value in file.metadata.items()
            if name.startswith(prefix)
        }

    def take(self, name: str, default: Any = None) -> Any:
        """Returns a value, which counts as read."""
        return self._values.pop(name, default)

    def require(self, name: str) -> Any:
        """Returns a value, which counts as read; raises SetupError if there is none."""
        if name not in self._values:
            raise self.file.refusal(f"it has no {self.file.architecture}.{name}")
        return self._values.pop(name)

    def peek(self, name: str, default: Any = None) -> Any:
        """Returns a value, which does not count as read."""
        return self._values.get(name, default)

    def require_all_read(self) -> None:
        """Raises SetupError that names a key that was not read and matters."""
        for name, value in self._values.items():
            if name not in _HARMLESS and value not in _NEUTRAL.get(name, ()):
                raise self.file.refusal(f"{self.file.architecture}.{name} ({value}) is not read")


def _single(value: Any) -> Any:
    """Returns the number that is the same for all layers as one."""
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        return value[0]
    return value
