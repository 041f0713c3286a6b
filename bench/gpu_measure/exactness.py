"""Whether greedy texts stay the same whatever is drafted, in float32."""

import random
from dataclasses import dataclass

import numpy as np

from gpu_measure.bench import Bench
from gpu_measure.models import fuse_checked, make_runners
from gpu_measure.shape import EXACT, TINY_EXACT
from gpu_measure.slots import (
    BLOCK_SIZE,
    Loaded,
    checked,
    next_plan,
    plan_rows,
    prompt_of,
    release_all,
)
from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import Admission, PlannedRow, Sizes, WindowUpdate
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner


def measure_exactness(bench: Bench) -> None:
    """Compares greedy texts of a small model in float32 with and without drafts."""
    shape = TINY_EXACT if bench.is_tiny else EXACT
    name = shape.write(bench.directory, initializer_range=0.2)
    model = load_model(name, "float32", str(bench.device), dummy_weights=True)
    fuse_checked(bench, model)
    num_tokens = 24 if bench.is_tiny else 96
    sizes = Sizes(3 * 2048 // BLOCK_SIZE, BLOCK_SIZE, 4, 2048, 2048)
    state = DeviceState(model, sizes)
    loaded = Loaded(shape, model, state, *make_runners(model, state))
    prompts = [prompt_of(loaded, 50 + slot, 40 + 7 * slot) for slot in range(3)]
    truth = [
        generate_texts(loaded, loaded.plain, [prompt], None, num_tokens, 0)[0] for prompt in prompts
    ]
    for graphs, runner in (("off", loaded.plain), ("on", loaded.runner)):
        for wrong in (0.0, 0.1, 1.0):
            for kind in ("chain", "tree"):
                draft = Predictor(truth, wrong, shape.vocab_size, is_tree=kind == "tree")
                texts = generate_texts(loaded, runner, prompts, draft, num_tokens, 9)
                same = sum(text == true for text, true in zip(texts, truth, strict=True))
                what = f"texts that stay, {kind}, {wrong:.0%} wrong drafts, graphs {graphs}"
                bench.add(what, same, "texts", note=f"of {len(truth)}")
                if same < len(truth):
                    bench.fail(what, "a text changed with its drafts")


@dataclass
class Predictor:
    """Windows from a known text, some of whose tokens are replaced."""

    truth: list[list[int]]
    wrong: float
    vocab_size: int
    is_tree: bool

    def update(self, slot: int, base: int) -> WindowUpdate:
        """Returns the window after `base` tokens of the output."""
        rng = random.Random(f"{slot} {base}")  # noqa: S311
        true = self.truth[slot][base : base + 9]
        tokens = [
            (token + 1) % self.vocab_size if rng.random() < self.wrong else token for token in true
        ]
        parents: list[int] = []
        if self.is_tree and len(true) > 3:
            # True branches after the first token, wrong or not, and at the top.
            chain, first = range(-1, len(true) - 1), len(true)
            second = first + len(true) - 1
            parents = [*chain, 0, *range(first, second - 1), -1, second, second + 1]
            tokens += true[1:] + true[:3]
        return WindowUpdate(slot, base, tokens, parents)


def generate_texts(
    loaded: Loaded,
    runner: Runner,
    prompts: list[list[int]],
    predictor: Predictor | None,
    num_tokens: int,
    drafts: int,
) -> list[list[int]]:
    """Generates from prompts, computed from their first token on, with a window at every step."""
    release_all(loaded)
    per_row = loaded.state.sizes.num_blocks // 3
    admissions, rows = [], []
    for slot, prompt in enumerate(prompts):
        admissions.append(Admission(slot, f"r{slot}", prompt, len(prompt), SamplingParams()))
        blocks = [slot + 3 * number for number in range(per_row)]
        rows.append(PlannedRow(slot, len(prompt), 0, blocks))
    plan = plan_rows(loaded, rows, admissions=admissions)
    texts: list[list[int]] = [[] for _ in prompts]
    while min(map(len, texts)) < num_tokens:
        result = checked(runner.execute(plan))
        ends = np.cumsum(result.num_emitted_tokens)
        for index, end in enumerate(ends.tolist()):
            start = end - int(result.num_emitted_tokens[index])
            texts[index] += result.token_ids[start:end].tolist()
        windows = []
        if predictor is not None:
            windows = [predictor.update(slot, len(text)) for slot, text in enumerate(texts)]
        plan = next_plan(loaded, len(prompts), drafts, windows=windows)
    return [text[:num_tokens] for text in texts]
