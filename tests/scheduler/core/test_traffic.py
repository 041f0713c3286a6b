"""Random traffic that dwells on what random commands seldom reach: repeats and shared blocks."""

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.width.drafter import Drafter
from tests.scheduler.drive import make_window
from tests.scheduler.fake_worker import expected_output
from tests.scheduler.situation import Situation


def run_leases(num_runs: int) -> None:
    """Plans that are run again, with aborts, stops and new requests in between."""
    for seed in range(num_runs):
        rng = np.random.default_rng(seed)
        situation = Situation(
            multi_step_count=int(rng.integers(2, 5)),
            max_plans_in_flight=int(rng.integers(1, 4)),
            block_size=int(rng.integers(1, 4)),
            num_blocks=int(rng.integers(9, 30)),
            num_speculative_tokens=int(rng.integers(0, 4)),
            max_num_batched_tokens=int(rng.integers(6, 17)),
            max_num_seqs=3,
        )
        for handle in range(9):
            _add(situation, rng, handle, rng.integers(0, 50, rng.integers(1, 24)).tolist())
            for _ in range(rng.integers(1, 6)):
                _turn(situation, rng)
                while situation.worker.can_repeat and rng.random() < 0.7:
                    situation.repeat()
        situation.finish()


def run_prefixes(num_runs: int) -> None:
    """Prompts that go on with what others said or are saying, in a small pool."""
    for seed in range(num_runs):
        rng = np.random.default_rng(seed)
        situation = Situation(
            enable_prefix_caching=True,
            max_plans_in_flight=int(rng.integers(1, 4)),
            block_size=int(rng.integers(1, 4)),
            num_blocks=int(rng.integers(14, 34)),
            max_num_batched_tokens=int(rng.integers(8, 40)),
        )
        texts: list[list[int]] = [[1, 2, 3], [1, 2, 4]]
        for handle in range(14):
            text = texts[rng.integers(0, len(texts))]
            prompt = [*text[: rng.integers(1, len(text) + 1)], *rng.integers(0, 50, 1).tolist()]
            output = _add(
                situation, rng, handle, prompt[-24:] if rng.random() < 0.1 else prompt[:24]
            )
            texts.append([*prompt[:24], *output])
            for _ in range(rng.integers(0, 5)):
                _turn(situation, rng)
        situation.finish()


def run_sources(num_runs: int) -> None:
    """Drafts of windows, of their alternatives and of a drafter; checks every account."""
    for seed in range(num_runs):
        rng = np.random.default_rng(seed)
        depth = int(rng.integers(1, 4))
        num_tokens = int(depth * rng.integers(1, 4))
        situation = Situation(
            drafter=Drafter(DraftSource(int(rng.integers(2, 6))), num_tokens, depth),
            max_plans_in_flight=int(rng.integers(1, 4)),
            num_blocks=int(rng.integers(16, 60)),
            num_speculative_tokens=int(rng.integers(1, 9)),
            max_num_batched_tokens=int(rng.integers(12, 60)),
        )
        counts: dict[int, Counter[int]] = defaultdict(Counter)
        foreign: set[int] = set()
        for handle in range(8):
            while situation.scheduler.num_waiting >= situation.config.max_num_waiting:
                _count(situation, counts)
            if _add_branching(situation, rng, handle):
                foreign.add(handle)
            for _ in range(rng.integers(1, 8)):
                _count(situation, counts)
        while situation.scheduler.num_running or situation.scheduler.num_waiting:
            _count(situation, counts)
        situation.finish()
        for handle, sources in counts.items():
            finished = situation.finished(handle)
            if handle in foreign:
                sources[DraftSource.NGRAM] += sources.pop(DraftSource.PREDICTION, 0)
            sources[DraftSource.TARGET] = len(situation.text(handle)) - sources.total()
            by_source = [sources[source] for source in DraftSource]
            assert list(finished.num_tokens_by_source) == by_source
            assert finished.accepted_prediction_tokens == sources[DraftSource.PREDICTION]
            assert sources[DraftSource.TARGET] <= finished.num_passes


def _add_branching(situation: Situation, rng: np.random.Generator, handle: int) -> bool:
    """Adds a request; mostly its window is wrong from some place on, and has alternatives.

    What is expected of the window and of the right alternative stand apart in the prediction.

    Returns:
        Whether nothing of the window stands in the prediction.
    """
    prompt = rng.integers(0, 50, 5).tolist()
    output = expected_output(prompt, 50, len(prompt) + 24, set())
    at = int(rng.integers(0, len(output)))
    rest = output[at:]
    window = [*output[:at], *((token + 1) % 50 for token in rest)]
    others = [(at, 0, [(token + 2) % 50 for token in rest])]
    if rng.random() < 0.7:
        others.append((at, len(window) + at, rest))
    situation.add(handle, prompt, 24, predicted_token_ids=[*window, *output])
    is_foreign = bool(rng.random() < 0.3)
    if rng.random() < 0.7:
        tree = make_window(0, -1 if is_foreign else 0, window, others)
        assert situation.scheduler.set_window(f"r{handle}", tree)
    return is_foreign


def _count(situation: Situation, counts: dict[int, Counter[int]]) -> None:
    """One round of the loop; adds what was accepted to the sources of each request."""
    situation.fill()
    situation.scheduler.prepare()
    if not situation.sent:
        return
    outputs = situation.answer()
    columns = outputs.handles, outputs.draft_sources, outputs.num_accepted_tokens
    for handle, source, accepted in zip(*(each.tolist() for each in columns), strict=True):
        counts[handle][source] += accepted


def _add(
    situation: Situation, rng: np.random.Generator, handle: int, prompt: list[int]
) -> list[int]:
    """Adds a request, with a window that may be wrong somewhere, once the queue has room."""
    while situation.scheduler.num_waiting >= situation.config.max_num_waiting:
        _turn(situation, rng)
    max_tokens = int(rng.integers(1, 12))
    if len(prompt) >= situation.config.max_length or rng.random() < 0.3:
        prompt = prompt[: situation.config.max_length - 1]
        return situation.add(handle, prompt, max_tokens)
    output = situation.add_predicted(handle, prompt, max_tokens)
    if rng.random() < 0.4:
        situation.propose(handle, wrong_at=int(rng.integers(0, len(output))))
    return output


def _turn(situation: Situation, rng: np.random.Generator) -> None:
    """One round of the loop, with a request or two aborted in the middle of it."""
    situation.fill()
    situation.scheduler.prepare()
    live = [handle for handle in situation.expected if handle not in situation.got.ended]
    if live and rng.random() < 0.15:
        situation.abort(live[rng.integers(0, len(live))])
    if situation.sent:
        situation.answer()
    if rng.random() < 0.5:
        situation.fill()


@pytest.mark.parametrize(
    ("run", "number"), [(run_leases, 40), (run_prefixes, 40), (run_sources, 25)]
)
def test_random_traffic_is_planned_right(run: Callable[[int], None], number: int) -> None:
    run(number)
