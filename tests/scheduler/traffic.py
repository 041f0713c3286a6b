"""Random traffic that dwells on what random commands seldom reach: repeats and shared blocks."""

import numpy as np

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
