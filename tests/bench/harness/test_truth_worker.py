"""The worker that says given texts, driven by a real scheduler core."""

from collections import deque
from random import Random
from typing import Any

import numpy as np
import pytest

from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.simulated_worker import PlanError, SimulatedModel
from optimist_bench.harness.truth_worker import TruthWorker
from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import TokenTree
from optimist_scheduler.core.requests.config import EngineConfig
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.scheduler import Scheduler
from optimist_scheduler.core.windows.window import Window
from optimist_scheduler.workers.translate import plan_message, step_result

TRUTHS = [[7, 8, 9, 7, 8, 9, 5, 6], [3] * 12, [4, 5]]
MODEL = SimulatedModel(vocab_size=16, max_model_len=64, num_blocks=64, max_num_seqs=4)


def admitting(
    *token_ids: int, seed: int = 0, most: int = 0, **more: Any
) -> worker_pb2.ExecuteRequest:
    """Returns a plan that admits a row in slot 1, the first token of which is the prompt."""
    admission = worker_pb2.Admission(
        slot=1, token_ids=to_bytes(token_ids), num_prompt_tokens=1, max_length=9
    )
    admission.sampling.seed = seed
    return worker_pb2.ExecuteRequest(
        sequence=1,
        admissions=[admission],
        slots=to_bytes([1]),
        num_known_tokens=to_bytes([len(token_ids)]),
        num_draft_tokens=to_bytes([most]),
        **more,
    )


def drafts(window: worker_pb2.Window, output: int, most: int) -> tuple[int, list[int]]:
    """Returns how many drafts of a window are verified, and the new tokens."""
    worker = TruthWorker([TRUTHS[0]], MODEL.describe())
    response = worker.execute(admitting(0, *TRUTHS[0][:output], most=most, windows=[window]))
    assert from_bytes(response.num_accepted_tokens)[0] == len(from_bytes(response.token_ids)) - 1
    return int(from_bytes(response.num_drafted_tokens)[0]), from_bytes(response.token_ids).tolist()


def chain(base: int, *token_ids: int) -> worker_pb2.Window:
    return worker_pb2.Window(slot=1, base=base, token_ids=to_bytes(token_ids))


def test_a_chain_is_accepted_as_far_as_it_is_right() -> None:
    assert drafts(chain(0, 7, 8, 1, 7), 0, 3) == (3, [7, 8, 9])
    assert drafts(chain(0, 7, 8, 9, 7), 1, 8) == (3, [8, 9, 7, 8])
    assert drafts(chain(0, 7, 9, 9, 7), 2, 8) == (0, [9])
    assert drafts(chain(3, 7, 8), 2, 8) == (0, [9])
    # The last token is the model's own.
    assert drafts(chain(0, *TRUTHS[0]), 5, 8) == (2, [9, 5, 6])


def test_of_a_tree_the_first_nodes_after_the_output_are_drafted() -> None:
    tree = worker_pb2.Window(
        slot=1, token_ids=to_bytes([7, 1, 8, 2, 9, 7]), parents=to_bytes([-1, -1, 0, 0, 2, 4])
    )
    assert drafts(tree, 0, 6) == (6, [7, 8, 9, 7, 8])
    assert drafts(tree, 0, 3) == (3, [7, 8, 9])
    assert drafts(tree, 1, 3) == (3, [8, 9, 7])
    assert drafts(tree, 2, 9) == (2, [9, 7, 8])


def test_texts_come_out_whatever_is_proposed() -> None:
    random = Random(0)
    config = EngineConfig(
        vocab_size=16, max_model_len=64, num_blocks=64, max_num_seqs=2, max_plans_in_flight=2
    )
    scheduler, worker = Scheduler(config), TruthWorker(TRUTHS, MODEL.describe())
    for number, truth in enumerate(TRUTHS):
        new = NewRequest(f"r{number}", [number], len(truth), truth, handle=number)
        scheduler.add(new, 0.0)
    texts: dict[int, list[int]] = {number: [] for number in range(len(TRUTHS))}
    plans: deque[worker_pb2.ExecuteRequest] = deque()
    while scheduler.num_running or scheduler.num_waiting:
        for number, text in texts.items():
            tokens = np.array(TRUTHS[number][len(text) :], np.int32)
            tokens[random.randrange(len(tokens)) :] += 1 if len(tokens) else 0
            positions = np.full(len(tokens), -1, np.int32)
            window = Window(len(text), TokenTree(tokens % 16), positions, np.empty(0, np.float32))
            scheduler.set_window(f"r{number}", window)
        while scheduler.can_send and (plan := scheduler.schedule(0.0)) is not None:
            plans.append(plan_message(plan))
        outputs = scheduler.settle(step_result(worker.execute(plans.popleft())))
        tokens_left = iter(outputs.token_ids.tolist())
        for handle, count in zip(outputs.handles, outputs.num_tokens, strict=True):
            texts[int(handle)] += [next(tokens_left) for _ in range(count)]
        for ended in outputs.ended:
            assert texts.pop(ended.handle) == TRUTHS[ended.handle]
    assert not texts


def test_a_plan_that_breaks_the_contract_is_refused() -> None:
    worker, request = TruthWorker(TRUTHS, MODEL.describe()), worker_pb2.ExecuteRequest
    for plan, message in (
        (request(released_slots=to_bytes([3])), "released_slots: 3 is free"),
        (request(windows=[worker_pb2.Window(slot=2)]), "slots: 2 is free"),
        (admitting(9), "there is no text 9"),
    ):
        with pytest.raises(PlanError, match=message):
            worker.execute(plan)
    with pytest.raises(PlanError, match="num_repeats"):
        worker.repeat()


def test_a_seed_says_which_text_where_that_is_wanted() -> None:
    for seed in (1, 4):
        worker = TruthWorker(TRUTHS, MODEL.describe(), by_seed=True)
        response = worker.execute(admitting(9, seed=seed))
        assert from_bytes(response.token_ids).tolist() == TRUTHS[1][:1]
