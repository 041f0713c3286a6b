"""Models with recurrent layers: the text of transformers, whatever is drafted beside it."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from optimist.worker.v1 import worker_pb2
from optimist_common.errors import SetupError
from optimist_worker.core.plan import PlannedRow, WindowUpdate
from optimist_worker.drafters.build import load_drafter
from optimist_worker.model.division import StagePosition
from optimist_worker.model.memory import plan_memory
from optimist_worker.model.model import load_model
from optimist_worker.runner.cost import measure_costs
from optimist_worker.runner.runner import Runner
from optimist_worker.settings import WorkerSettings
from tests.checkpoints import HYBRID_FAMILIES, VOCAB_SIZE
from tests.worker.call import serve
from tests.worker.step import admit, begin, build_runner, generate, go_on, plan_rows, run

NUM_TOKENS = 30
BURST = 16


@pytest.fixture(scope="session")
def hybrid(checkpoint: Callable[[str], Path]) -> Callable[[str], Runner]:
    """Returns the float32 runner of a family, which tests share."""
    return cache(lambda family: build_runner(checkpoint(family), "float32"))


@pytest.fixture(params=list(HYBRID_FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def runner(family: str, hybrid: Callable[[str], Runner]) -> Runner:
    runner = hybrid(family)
    runner.release_all()
    return runner


def prompts(number: int) -> list[list[int]]:
    """Prompts of 3 to 40 tokens."""
    source = random.Random(number)
    return [source.choices(range(3, VOCAB_SIZE), k=source.randint(3, 40)) for _ in range(number)]


@pytest.fixture(scope="session")
def texts(checkpoint: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """Returns what transformers generates after `prompts(BURST)` with its own cache."""

    @cache
    def generate_all(family: str) -> list[list[int]]:
        auto_model: Any = AutoModelForCausalLM
        module = auto_model.from_pretrained(checkpoint(family), attn_implementation="eager")
        module.generation_config.eos_token_id = None
        options = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "do_sample": False}
        found = []
        for prompt in prompts(BURST):
            output = module.generate(torch.tensor([prompt]), **options)[0].tolist()
            found.append(output[len(prompt) :])
        return found

    return generate_all


def guess(text: list[int], done: int, width: int, seed: int) -> list[int]:
    """Drafts of which some are wrong, now none, now all."""
    source = random.Random(1000 * seed + done)
    share = source.choice((0.0, 0.1, 0.5, 1.0))
    drafts = text[done : done + width]
    return [3 + (token + 1) % 300 if source.random() < share else token for token in drafts]


@pytest.mark.parametrize("width", [0, 1, 8, 64])
def test_text_is_that_of_transformers_at_any_width(
    family: str, runner: Runner, texts: Callable[[str], list[list[int]]], width: int
) -> None:
    for number in range(3):
        prompt, text = prompts(BURST)[number], texts(family)[number]

        def predict(output: list[int], text: list[int] = text) -> list[int]:
            return guess(text, len(output), width, width)

        for chunk in (1000, 7):
            found = generate(runner, prompt, NUM_TOKENS, predict=predict, width=width, chunk=chunk)
            assert found == text


def test_text_is_the_same_with_trees(
    family: str, runner: Runner, texts: Callable[[str], list[list[int]]]
) -> None:
    prompt, text = prompts(BURST)[0], texts(family)[0]

    def predict(output: list[int]) -> WindowUpdate:
        """A tree in which the true tokens are the second or third child."""
        tokens, parents, parent = [], [], -1
        for at, token in enumerate(text[len(output) : len(output) + 4]):
            others = [3 + (token + 7 * other) % 300 for other in range(1, 2 + at % 2)]
            tokens += [*others, token]
            parents += [parent] * (len(others) + 1)
            parent = len(tokens) - 1
        return WindowUpdate(0, len(output), tokens, parents)

    results: list[int] = []
    found = generate(
        runner,
        prompt,
        NUM_TOKENS,
        predict=predict,
        width=16,
        note=lambda result: results.append(int(result.num_accepted_tokens.sum())),
    )
    assert found == text
    assert sum(results) > NUM_TOKENS / 2


def test_text_is_the_same_in_a_burst_with_preemptions(
    family: str, runner: Runner, texts: Callable[[str], list[list[int]]]
) -> None:
    source = random.Random(5)
    wanted = dict(enumerate(zip(prompts(BURST), texts(family), strict=True)))
    output: dict[int, list[int]] = {slot: [] for slot in wanted}
    waiting, sequence = list(wanted), 0
    released: list[int] = []
    while any(len(output[slot]) < NUM_TOKENS for slot in wanted):
        begun = [slot for slot in waiting if source.random() < 0.6]
        waiting = [slot for slot in waiting if slot not in begun]
        rows, windows, admissions = [], [], []
        for slot, (prompt, text) in wanted.items():
            if slot in waiting:
                continue
            known = 1
            if slot in begun:
                tokens = prompt + output[slot]
                known = len(tokens)
                admissions.append(admit(slot, tokens, num_prompt_tokens=len(prompt)))
            width = source.choice((0, 0, 3, 30))
            if drafts := guess(text, len(output[slot]), width, slot):
                windows.append(WindowUpdate(slot, len(output[slot]), drafts))
            blocks = list(range(6 * slot, 6 * slot + 6)) if slot in begun else []
            rows.append(PlannedRow(slot, known, width, blocks))
        plan = plan_rows(
            sequence, rows, admissions=admissions, windows=windows, released_slots=released
        )
        sequence += 1
        released = []
        for row in run(runner, plan):
            assert row.error is None
            output[row.slot] += row.token_ids
            # Now and then a request loses its slot and has to begin anew.
            if source.random() < 0.15:
                released.append(row.slot)
                waiting.append(row.slot)
    assert {slot: tokens[:NUM_TOKENS] for slot, tokens in output.items()} == {
        slot: text for slot, (_, text) in wanted.items()
    }


def states(runner: Runner, slot: int) -> list[torch.Tensor]:
    pool = runner.engine.state.recurrent
    assert pool is not None
    parts = [part for group in pool.groups for part in (group.inputs, group.matrices)]
    return [part[:, slot].clone() for part in parts if part is not None]


def test_rejected_drafts_leave_the_states_as_they_were(
    runner: Runner, family: str, texts: Callable[[str], list[list[int]]]
) -> None:
    """To the last bit those that other wrong drafts leave; and close to those without drafts."""
    prompt, text = prompts(BURST)[1], texts(family)[1]
    left = []
    for step in (1, 2):
        wrong = [3 + (token + step) % 300 for token in text[:9]]
        result = begin(runner, prompt, window=(wrong, []), width=9)
        assert (result.num_drafted_tokens, result.num_accepted_tokens) == (9, 0)
        left.append(states(runner, 0))
    begin(runner, prompt)
    left.append(states(runner, 0))
    for one, other, without in zip(*left, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, without, rtol=1e-4, atol=1e-5)
    assert go_on(runner).token_ids == [text[1]]


def test_a_request_with_cached_blocks_is_refused(runner: Runner) -> None:
    request = admit(0, list(range(3, 40)), cached_blocks=[0])
    (row,) = run(runner, plan_rows(1, [PlannedRow(0, 21, 0, [1, 2, 3])], admissions=[request]))
    assert row.error == (
        "cached_blocks: must be empty, since states of recurrent layers are not in blocks"
    )


async def test_the_size_of_a_slots_states_is_described(runner: Runner, llama: Runner) -> None:
    for each in (runner, llama):
        async with serve(each) as stub:
            description = await stub.Describe(worker_pb2.DescribeRequest())
        whole = sum(state.nbytes for state in states(each, 0)) if each is runner else 0
        assert description.slot_state_bytes == whole


def test_costs_are_measured_but_those_of_keys(runner: Runner) -> None:
    costs = measure_costs(runner, 0.3)
    assert costs.passes
    assert (costs.row_key_ps, costs.token_key_ps) == (0, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_dtypes_compute_the_same_text_at_any_width(
    checkpoint: Callable[[str], Path], family: str, dtype: str
) -> None:
    """In bfloat16 only that drafts come true: near ties may go the other way."""
    runner = build_runner(checkpoint(family), dtype)
    prompt = prompts(BURST)[2]
    text = generate(runner, prompt, NUM_TOKENS)
    accepted: list[int] = []
    found = generate(
        runner,
        prompt,
        NUM_TOKENS,
        predict=lambda output: text[len(output) : len(output) + 8],
        width=8,
        note=lambda result: accepted.append(int(result.num_accepted_tokens.sum())),
    )
    assert sum(accepted) > NUM_TOKENS / 2
    assert dtype == "bfloat16" or found == text


def test_the_text_of_a_checkpoint_that_also_sees(tmp_path: Path) -> None:
    """As Qwen3.5 is published, with a vision encoder that is left out."""
    text = HYBRID_FAMILIES["qwen3_5"][1]
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
    config = Qwen3_5Config(text_config=text, vision_config=vision | {"out_hidden_size": 64})
    module: Any = Qwen3_5ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.1)
    module.save_pretrained(tmp_path)
    prompt = prompts(BURST)[0]
    options = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "eos_token_id": None}
    wanted = module.generate(input_ids=torch.tensor([prompt]), **options)[0, len(prompt) :]
    assert generate(build_runner(tmp_path, "float32"), prompt, NUM_TOKENS) == wanted.tolist()


def test_states_take_their_part_of_the_memory(checkpoint: Callable[[str], Path]) -> None:
    model = load_model(str(checkpoint("qwen3_5")), "float32", "cpu")
    # Two layers: 3 inputs of 160 channels, and 4 matrices of 16 x 24.
    of_slot = 2 * 4 * (3 * 160 + 4 * 16 * 24)
    of_block = 2 * 16 * 2 * 2 * 16 * 4
    settings = {"model": "m", "kv_memory_mib": 1}
    sizes = plan_memory(WorkerSettings(**settings, max_num_seqs=4), model)
    assert (sizes.max_num_seqs, sizes.num_blocks) == (4, (2**20 - 4 * of_slot) // of_block)
    sizes = plan_memory(WorkerSettings(**settings, max_num_seqs=64), model)
    assert sizes.max_num_seqs == 2**19 // of_slot
    assert sizes.num_blocks == (2**20 - sizes.max_num_seqs * of_slot) // of_block


def test_what_is_not_divided_is_refused(checkpoint: Callable[[str], Path]) -> None:
    path = str(checkpoint("qwen3_5"))
    with pytest.raises(SetupError, match=r"--tensor-parallel-size: .*\(linear_attention\)"):
        load_model(path, "float32", "cpu", tensor_parallel_size=2)
    with pytest.raises(SetupError, match=r"--pipeline-parallel-size: .*\(linear_attention\)"):
        load_model(path, "float32", "cpu", stage=StagePosition(0, 2))


def test_a_model_with_states_does_not_draft(checkpoint: Callable[[str], Path]) -> None:
    path = str(checkpoint("lfm2"))
    model = load_model(path, "float32", "cpu")
    for options in ({"drafter": "quantised"}, {"drafter": "draft_model", "drafter_model": path}):
        with pytest.raises(SetupError, match="has recurrent layers, and drafts are taken back"):
            load_drafter(WorkerSettings(model=path, **options), model)
