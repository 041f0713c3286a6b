"""How a model is divided: its layers among stages, and each layer among tensor-parallel ranks."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from optimist_common.errors import SetupError
from optimist_worker.core.recurrence.layers import LAYER_TYPES
from optimist_worker.model.source import ModelSource


def check_divisible(source: ModelSource, flag: str) -> None:
    """Raises SetupError if a model has layers that are not divided among processes."""
    if recurrent := source.layer_types & LAYER_TYPES:
        raise SetupError(
            f"{flag}: {source.name} has recurrent layers ({', '.join(sorted(recurrent))}), which "
            "one process computes; leave it at 1"
        )


def check_division(name: str, config: Any, number: int) -> None:
    """Raises SetupError unless the layers of a text config can be divided among some ranks."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if heads % number or kv_heads % number:
        common = math.gcd(heads, kv_heads)
        sizes = [str(size) for size in range(1, common + 1) if common % size == 0]
        raise SetupError(
            f"--tensor-parallel-size: {number} ranks cannot share the {heads} attention heads and "
            f"{kv_heads} KV heads of {name}; choose "
            f"{', '.join(sizes[:-1])}{' or ' * (len(sizes) > 1)}{sizes[-1]}"
        )
    if not config.base_model_tp_plan:
        raise SetupError(
            f"--tensor-parallel-size: transformers has no plan to divide {name} "
            f"({config.model_type}); leave it at 1"
        )


def whole(weight: Any) -> Any:
    """Returns a weight as one tensor; called by all ranks that hold parts of it."""
    gather = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()


@dataclass(frozen=True, slots=True)
class StagePosition:
    """Where a stage stands in its pipeline."""

    index: int
    num_stages: int

    @property
    def is_first(self) -> bool:
        """Whether it is fed tokens."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it has the logits, and judges drafts."""
        return self.index == self.num_stages - 1


def split_layers(costs: Sequence[int], head_cost: int, num_stages: int) -> list[range]:
    """Divides layers such that the slowest stage is as fast as can be; each has one at least.

    A step of the pipeline takes as long as its slowest stage. `costs` are what layers take, such as
    their numbers of weights, and `head_cost` what follows the last one takes. What stands before
    the first layer is a lookup and costs nothing.
    """
    num_layers = len(costs)

    @cache
    def divide(first: int, stages: int) -> tuple[int, list[int]]:
        """Returns what the slowest of some stages costs, and where each of them ends."""
        if stages == 1:
            return sum(costs[first:]) + head_cost, [num_layers]
        # Of equally good ones the one that leaves the last stage, which also samples, least.
        slowest, end = min(
            (max(sum(costs[first:end]), divide(end, stages - 1)[0]), -end)
            for end in range(first + 1, num_layers - stages + 2)
        )
        return slowest, [-end, *divide(-end, stages - 1)[1]]

    return [range(*span) for span in pairwise([0, *divide(0, num_stages)[1]])]


_FLAG = "--pipeline-parallel-size"


@dataclass(frozen=True, slots=True)
class StageCut:
    """Which part of a model a stage has."""

    position: StagePosition
    layers: range
    num_layers: int
    """Of the whole model."""
    vocab_size: int
    """Rows of the output matrix, which only the last stage has."""
    outline: Any
    """The whole model without data."""

    @property
    def model_class(self) -> Any:
        """The model's class, but instances lack what the stage does not have.

        What is not in an instance is not read from the checkpoint.
        """
        whole, cut = type(self.outline), self

        def __init__(self: Any, config: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
            whole.__init__(self, config, *arguments, **options)
            cut.remove_others(self)

        members = {
            "__init__": __init__,
            # transformers looks at the source of the class's module.
            "__module__": whole.__module__,
            # What other stages have is expected to be left over.
            "_keys_to_ignore_on_load_unexpected": [".*"],
        }
        return type(whole.__name__, (whole,), members)

    def remove_others(self, module: Any) -> None:
        """Takes what other stages have out of a model; names of weights stay."""
        layers = find_layers(module, self.num_layers)
        for index in range(self.num_layers):
            if index not in self.layers:
                layers[index] = nn.Identity()
        is_tied = bool(module.all_tied_weights_keys)
        if not self.position.is_first and not (is_tied and self.position.is_last):
            module.set_input_embeddings(nn.Identity())
        if not self.position.is_last:
            module.set_output_embeddings(nn.Identity())
            module.all_tied_weights_keys = {}

    def close_gaps(self, module: Any) -> None:
        """Makes a loaded model run through its own layers only."""
        module.__class__ = type(self.outline)
        owner, name = _find_owner(module, self.num_layers)
        kept = [getattr(owner, name)[index] for index in self.layers]
        setattr(owner, name, nn.ModuleList(kept))
        # Decoders look up what kind of layer their n-th one is. Layers know it themselves.
        config = copy.copy(owner.config)
        for key, value in list(vars(config).items()):
            if isinstance(value, list) and len(value) == self.num_layers:
                config.__dict__[key] = [value[index] for index in self.layers]
        config.__dict__["num_hidden_layers"] = len(kept)
        owner.config = config


def plan_cut(source: ModelSource, position: StagePosition) -> StageCut:
    """Decides which part of a model a stage has; SetupError if there are too many stages."""
    with source.built():
        model = source.make_module()
    num_layers = source.text_config.num_hidden_layers
    if num_layers < position.num_stages:
        raise SetupError(
            f"{_FLAG}: {source.name} has {num_layers} layers; choose at most as many stages, not "
            f"{position.num_stages}"
        )
    layers = find_layers(model, num_layers)
    head = model.get_output_embeddings().weight
    costs = [sum(weight.numel() for weight in layer.parameters()) for layer in layers]
    spans = split_layers(costs, head.numel(), position.num_stages)
    return StageCut(position, spans[position.index], num_layers, head.shape[0], model)


def find_layers(module: Any, num_layers: int) -> nn.ModuleList:
    """Returns the decoder layers of a model; raises SetupError if they cannot be distinguished."""
    owner, name = _find_owner(module, num_layers)
    layers: nn.ModuleList = getattr(owner, name)
    return layers


def _find_owner(module: Any, num_layers: int) -> tuple[Any, str]:
    """Returns the decoder, and how its list of layers is called."""
    found = [
        (part, name)
        for part in module.modules()
        if isinstance(part, PreTrainedModel)
        for name, child in part.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == num_layers
    ]
    if len(found) != 1:
        raise SetupError(
            f"{_FLAG}: the layers of {type(module).__name__} cannot be distinguished; leave it at 1"
        )
    return found[0]
