"""A model by the setting that names it: its config, and its class without weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from optimist_common.errors import SetupError
from optimist_common.model_files.tokenizer import explained
from optimist_worker.core.attention.paged_attention import NAME
from optimist_worker.core.recurrence.layers import LAYER_TYPES
from optimist_worker.model.packed import PackedError

_LAYER_TYPES = {"full_attention", "sliding_attention"} | LAYER_TYPES
_OTHER_ROPES = ("default", "axial", "ntk_alpha", "xdrope")
"""Rotary embeddings that classes of transformers compute themselves."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as a setting names it, by directory or hub name."""

    name: str
    flag: str
    """The setting, with which messages begin."""
    config: Any

    @property
    def text_config(self) -> Any:
        """The decoder's part of the config."""
        return self.config.get_text_config()

    @property
    def layer_types(self) -> set[str]:
        """Kinds of layers, where the config names them."""
        return set(getattr(self.text_config, "layer_types", None) or [])

    @property
    def where(self) -> str:
        """What messages begin with."""
        return f"{self.flag}: {self.name}"

    @property
    def kind(self) -> str:
        """What messages about a kind of models begin with."""
        return f"{self.where} ({self.config.model_type})"

    def make_module(
        self, dtype: torch.dtype | None = None, device: torch.device | str = "meta"
    ) -> Any:
        """Returns a decoder as its class initialises it; on the meta device it has no data."""
        auto_model: Any = AutoModelForCausalLM
        with torch.device(device):
            return auto_model.from_config(
                self.config, dtype=dtype, attn_implementation=NAME, trust_remote_code=False
            )

    @contextmanager
    def built(self) -> Iterator[None]:
        """Raises SetupError that explains in a line why the class cannot be built or loaded."""
        with explained(f"{self.flag}: cannot load {self.name}"):
            try:
                yield
            except PackedError as error:
                raise SetupError(f"{self.where}: {error}") from None
            except torch.OutOfMemoryError as error:
                raise SetupError(
                    f"{self.where} does not fit into the memory of the device; choose a smaller "
                    "--dtype, model or another --device"
                ) from error
            except (KeyError, AttributeError) as error:
                # Classes of before the interface look the name up in a table of their own.
                if error.args != (NAME,):
                    raise
                raise SetupError(
                    f"{self.kind} cannot be served: its attention does not use the attention "
                    "interface of transformers"
                ) from None

    def check(self) -> None:
        """Raises SetupError if the worker cannot serve such a model."""
        config = self.text_config
        unsupported = None
        if getattr(self.config, "is_encoder_decoder", False):
            unsupported = "it is an encoder-decoder"
        elif others := self.layer_types - _LAYER_TYPES:
            unsupported = f"it has {', '.join(sorted(others))} layers"
        elif getattr(config, "num_kv_shared_layers", 0):
            unsupported = "its layers share keys and values"
        if unsupported is not None:
            raise SetupError(
                f"{self.kind} cannot be served: {unsupported}; "
                "choose a decoder with causal full or sliding-window attention"
            )
        rope = getattr(config, "rope_parameters", None) or {}
        for one in [each for each in rope.values() if isinstance(each, dict)] or [rope]:
            kind = one.get("rope_type", "default")
            if kind not in (*ROPE_INIT_FUNCTIONS, *_OTHER_ROPES):
                raise SetupError(f"{self.where}: {_unknown('rope_type', kind)}")
        for key in ("hidden_act", "hidden_activation", "activation_function"):
            activation = getattr(config, key, None)
            if isinstance(activation, str) and activation not in ACT2FN:
                raise SetupError(f"{self.where}: {_unknown(key, activation)}")


def _unknown(key: str, value: Any) -> str:
    return (
        f"config.json: {key} is {value!r}, which transformers {transformers.__version__} does not "
        "know"
    )


def read_source(name: str, flag: str) -> ModelSource:
    """Reads the config of a model that can be served; runs no code of the checkpoint.

    Raises SetupError, which begins with `flag`, if it cannot be read, or the model would load but
    compute something else than its own attention.
    """
    with explained(f"{flag}: cannot read config.json of {name}"):
        values, _ = PreTrainedConfig.get_config_dict(name)
        kind = values.get("model_type")
        if kind not in CONFIG_MAPPING:
            raise SetupError(
                f"{flag}: {name}: {_unknown('model_type', kind)}; code that comes with a model is "
                "not run"
            )
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    source = ModelSource(name, flag, config)
    source.check()
    return source
