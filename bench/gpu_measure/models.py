"""Models of random weights whose texts can be foretold."""

import numpy as np
import torch

from gpu_measure.bench import Bench, say
from gpu_measure.shape import Shape
from gpu_measure.slots import BLOCK_SIZE, ROOM, Loaded, NotPossibleError
from optimist_worker.core.acceptance.verdict import AcceptanceRule
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.core.plan import Sizes
from optimist_worker.execution.executor import LocalExecutor
from optimist_worker.execution.step import Step
from optimist_worker.grammar.masks import Masks
from optimist_worker.model.fused import fuse
from optimist_worker.model.kernel_check import check_kernels, replaced_kernels
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import Model, load_model
from optimist_worker.runner.runner import Engine, Runner

MOST_POOL_TOKENS = 32 * (4096 + ROOM)


def load(bench: Bench, shape: Shape) -> Loaded:
    """Makes a model of a shape and takes memory for its slots, once."""
    if shape.name in bench.loaded:
        return bench.loaded[shape.name]
    say(f"  making dummy weights of shape {shape.name}")
    name = shape.write(bench.directory)
    dtype = str(bench.dtype).removeprefix("torch.")
    model = load_model(name, dtype, str(bench.device), dummy_weights=True)
    with torch.no_grad():
        for layer in model.module.model.layers:
            # Else the last token alone would decide what is next.
            layer.self_attn.o_proj.weight.mul_(8.0)
    output = model.module.get_output_embeddings()
    fuse_checked(bench, model)
    # It is written to later on.
    model.module.set_output_embeddings(output)
    state = DeviceState(model, sizes_for(bench, shape))
    for memory in (*state.pool.keys, *state.pool.values):
        # Contexts are not computed but given: their keys and values only have to be finite.
        memory.normal_(0.0, 0.5)
    loaded = Loaded(shape, model, state, *make_runners(model, state))
    write_text(loaded, is_firm=True)
    bench.loaded[shape.name] = loaded
    return loaded


def fuse_checked(bench: Bench, model: Model) -> None:
    """Fuses a model as the worker does; a kernel that fails its check is an error of the report."""
    before = replaced_kernels()
    check_kernels(model, BLOCK_SIZE)
    for name in replaced_kernels():
        if name not in before:
            bench.fail(f"kernel {name}", "plain PyTorch replaces it, see the log")
    fuse(model)


class _Exact(LocalExecutor):
    """Runs each step in its own size, so that a row is not that of a larger one."""

    def fit(self, size: StepBounds) -> StepBounds:
        return size


def make_runners(model: Model, state: DeviceState) -> tuple[Runner, Runner]:
    """Returns runners with and without graphs over the same slots."""
    step = Step(model, state, None, None, AcceptanceRule.COUPLED)
    masks = Masks(model.name, model)

    def make(uses_graphs: bool) -> Runner:
        executor = _Exact(step, masks, state.device, uses_graphs=uses_graphs)
        return Runner(Engine(model, state, executor))

    return make(True), make(False)


def sizes_for(bench: Bench, shape: Shape) -> Sizes:
    """Returns sizes that fit into the memory with room for passes."""
    tokens = MOST_POOL_TOKENS if not bench.is_tiny else 8 * (64 + ROOM)
    if bench.is_cuda:
        free = torch.cuda.mem_get_info()[0] * 0.8 - 8 * 2**30
        tokens = min(tokens, int(free / (shape.num_kept * bench.dtype.itemsize)))
    if tokens < 4 * BLOCK_SIZE:
        raise NotPossibleError("there is too little memory for keys and values")
    return Sizes(tokens // BLOCK_SIZE, BLOCK_SIZE, 64, 8192 if not bench.is_tiny else 2048, 8192)


@torch.no_grad()
def write_text(loaded: Loaded, *, is_firm: bool) -> None:
    """Replaces embedding and output matrix, in place, so that each token has successors."""
    inputs = loaded.model.module.get_input_embeddings().weight
    outputs = loaded.model.module.get_output_embeddings().weight
    vocab_size = len(inputs)
    order = torch.from_numpy(np.random.default_rng(7).permutation(vocab_size))
    successors = torch.empty_like(order)
    successors[order] = order.roll(-1)
    generator = torch.Generator(inputs.device).manual_seed(7)
    inputs.normal_(0.0, 1.0, generator=generator)
    outputs.index_copy_(0, successors.to(inputs.device), inputs)
    if not is_firm:
        others = torch.empty_like(order)
        others[order] = order.roll(-vocab_size // 3)
        outputs.index_add_(0, others.to(inputs.device), inputs)
    outputs.mul_(0.02)
    # The louder the embedding, the less the layers have to say.
    inputs.mul_(16.0 if is_firm else 4.0)
    loaded.successors = successors.tolist() if is_firm else []
