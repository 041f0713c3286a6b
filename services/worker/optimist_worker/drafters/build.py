"""Makes the drafter that the settings name."""

from collections.abc import Callable
from pathlib import Path

from optimist_common.drafts import DraftSource
from optimist_common.errors import SetupError
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.attention.paged_attention import block_bytes
from optimist_worker.core.batch.flat_batch import MOST_TREE_NODES
from optimist_worker.drafters.drafter import Drafter
from optimist_worker.drafters.guarded import GuardedDrafter
from optimist_worker.drafters.heads.eagle import EagleHead, load_eagle
from optimist_worker.drafters.heads.medusa import MedusaHeads, load_medusa
from optimist_worker.drafters.network import DraftModelNetwork, DraftNetwork, EagleNetwork
from optimist_worker.drafters.network_drafter import AutoregressiveDrafter, MedusaDrafter
from optimist_worker.drafters.ngram import NgramDrafter
from optimist_worker.drafters.shape import DraftShape
from optimist_worker.model.division import whole
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import FeatureTap, Model, load_model
from optimist_worker.model.quantise import quantise
from optimist_worker.model.tokenizer import check_same_tokenizer
from optimist_worker.settings import WorkerSettings

DrafterWeights = Model | EagleHead | MedusaHeads


def load_drafter(settings: WorkerSettings, target: Model) -> DrafterWeights | None:
    """Loads what drafts; None if nothing does.

    Raises SetupError if it cannot be loaded, or does not fit the target.
    """
    if settings.drafter in ("none", "ngram"):
        return None
    if settings.drafter == "quantised":
        _check_drafting(target, "--drafter")
        return quantise(target, 4 if settings.drafter_bits == 4 else 8)
    directory = find_weights(settings)
    if settings.drafter == "medusa":
        output = whole(target.module.get_output_embeddings().weight)
        return load_medusa(
            directory, output.shape[1], target.vocab_size, target.dtype, target.device, output
        )
    if settings.drafter == "eagle":
        return load_eagle(directory, target)
    check_same_tokenizer(settings.model, directory)
    model = load_model(
        directory,
        str(target.dtype).removeprefix("torch."),
        str(target.device),
        flag="--drafter-model",
    )
    _check_drafting(model, "--drafter-model")
    return model


def _check_drafting(model: Model, flag: str) -> None:
    """Raises SetupError if a model cannot draft: its own drafts must leave no trace in it."""
    if model.states:
        raise SetupError(
            f"{flag}: {model.name} has recurrent layers, and drafts are taken back in the target "
            "alone; choose a draft model without them, or --drafter ngram, medusa or eagle"
        )


def find_weights(settings: WorkerSettings) -> str:
    """Returns where a drafter's weights are: as set, or beside the model, named after it.

    Raises SetupError if neither is there.
    """
    if settings.drafter_model:
        return settings.drafter_model
    kind = "draft" if settings.drafter == "draft_model" else settings.drafter
    beside = f"{settings.model.rstrip('/')}-{kind}"
    if not Path(beside).expanduser().is_dir():
        raise SetupError(
            f"--drafter-model: --drafter {settings.drafter} needs one, and there is no {beside}; "
            "give the directory of its weights"
        )
    return beside


def drafter_block_bytes(weights: DrafterWeights | None, target: Model, block_size: int) -> int:
    """Returns the memory that a drafter takes per KV block of the target, in bytes."""
    if weights is None or isinstance(weights, MedusaHeads):
        return 0
    dtype = weights.dtype if isinstance(weights, Model) else target.dtype
    return block_bytes(weights.layers, block_size, dtype)


def build_drafter(
    settings: WorkerSettings,
    weights: DrafterWeights | None,
    target: Model,
    state: DeviceState,
    on_failure: Callable[[int], None] | None = None,
) -> tuple[GuardedDrafter | None, FeatureTap | None]:
    """Makes the drafter that is set, if one is, of what was loaded.

    Returns it, and where the features that it reads come from. Raises SetupError if there can be no
    drafts of the shape that is asked for, RuntimeError if there is too little memory.
    """
    drafter, tap = _build(settings, weights, target, state)
    if drafter is None:
        return None, tap
    return GuardedDrafter(drafter, state.table, on_failure), tap


def _build(
    settings: WorkerSettings, weights: DrafterWeights | None, target: Model, state: DeviceState
) -> tuple[Drafter | None, FeatureTap | None]:
    if settings.drafter == "ngram":
        return NgramDrafter(state.table, settings.num_drafter_tokens), None
    if weights is None:
        return None, None
    rule = AcceptanceRule(settings.acceptance)
    shape = read_shape(settings, target.vocab_size)
    if isinstance(weights, MedusaHeads):
        medusa = MedusaDrafter(weights, state.table, shape, state.sampling, target.dtype, rule)
        return medusa, FeatureTap(target.module, None)
    network: DraftNetwork
    tap, source = None, DraftSource[settings.drafter.upper()]
    if isinstance(weights, EagleHead):
        network = EagleNetwork(weights, state.table, target.dtype)
        tap = FeatureTap(target.module, weights.target_layers)
    else:
        most, kv = settings.max_num_batched_tokens, settings.drafter_kv
        network = DraftModelNetwork(weights, state.table, target.vocab_size, most, kv)
    return AutoregressiveDrafter(source, network, shape, state.sampling, rule), tap


def read_shape(settings: WorkerSettings, vocab_size: int) -> DraftShape:
    """Returns the shape of the drafts; raises SetupError if there can be no such tree."""
    if settings.drafter_tree == "none":
        return DraftShape(settings.num_drafter_tokens, settings.num_drafter_tokens)
    depth, width = settings.drafter_depth, settings.drafter_width
    if width > vocab_size:
        raise SetupError(f"--drafter-width: {width} is more than the {vocab_size} tokens")
    most, number = width + (depth - 1) * width**2, settings.num_drafter_tokens
    if depth > number or most < number:
        raise SetupError(
            f"--drafter-tokens: a tree of {depth} levels that is {width} wide has {depth} to "
            f"{most} tokens, not {number}; see --drafter-depth, --drafter-width"
        )
    # Medusa's heads are not fed drafts; of the last level nothing is fed.
    num_fed = 0 if settings.drafter == "medusa" else (depth - 1) * width
    if num_fed > MOST_TREE_NODES:
        raise SetupError(
            f"--drafter-depth, --drafter-width: in a tree of {depth} levels that is {width} wide "
            f"{num_fed} drafts go on, and no more than {MOST_TREE_NODES} can"
        )
    return DraftShape(
        settings.num_drafter_tokens, depth, width, is_dynamic=settings.drafter_tree == "dynamic"
    )
