"""Random plans for runners and workers that must answer them alike, for tests."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import Admission, Plan, PlannedRow, WindowUpdate
from optimist_worker.runner.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.worker.step import BLOCK_SIZE, SIZES, admit, generate, plan_rows


@dataclass
class Request:
    """What a scenario asks, what is said without drafts, and what has come of it."""

    prompt: list[int]
    sampling: SamplingParams
    truth: list[int]
    output: list[int] = field(default_factory=list)


def find_truths(runner: Runner, manners: Sequence[SamplingParams], size: int) -> list[Request]:
    """Has a runner say without drafts what is asked in each manner."""
    found = []
    for index, sampling in enumerate(manners):
        prompt = random.Random(index).choices(range(3, 250), k=7 + 9 * (index % 4))
        truth = generate(runner, prompt, size, sampling=sampling)
        found.append(Request(prompt, sampling, truth))
    return found


class Scenario:
    """Random plans: chunks, windows right and wrong, trees, requests that come, go and come back.

    It goes by what one runner answers; others are given the same plans.
    """

    def __init__(
        self,
        seed: int,
        truths: Sequence[Request],
        slots: range = range(5),
        blocks: range = range(SIZES.num_blocks),
        *,
        has_windows: bool = True,
    ) -> None:
        self._random, self._truths, self._slots = random.Random(seed), truths, slots
        self._window_chance = 0.6 if has_windows else 0.0
        self._free = self._random.sample(blocks, len(blocks))
        self._held: dict[int, list[int]] = {}
        self.requests: dict[int, Request] = {}
        """By the slot that holds it."""
        self.others: list[Scenario] = []
        """For whose slots windows come with its plans too."""

    def plans(self, number: int = 9) -> Iterator[Plan]:
        """Makes a plan at a time; `note` has to be called in between."""
        for sequence in range(number):
            released = [slot for slot in self.requests if self._random.random() < 0.1]
            given_up = {slot: self.requests.pop(slot) for slot in released}
            for slot in released:
                self._free += self._held.pop(slot)
            free_slots = [slot for slot in self._slots if slot not in self.requests]
            admissions = [
                self._admit(slot, given_up.get(slot))
                for slot in free_slots
                if self._random.random() < 0.6
            ]
            slots = [slot for slot in self.requests if self._random.random() < 0.8]
            self._random.shuffle(slots)
            windows = [
                self._window(slot, request)
                for one in (self, *self.others)
                for slot, request in one.requests.items()
                if self._random.random() < self._window_chance
            ]
            yield plan_rows(
                sequence,
                [self._row(slot) for slot in slots],
                released_slots=released,
                admissions=admissions,
                windows=windows,
            )

    def note(self, said: Mapping[int, list[int]]) -> None:
        """Takes in what a plan has brought each slot."""
        for slot, tokens in said.items():
            self.requests[slot].output += tokens

    def _admit(self, slot: int, given_up: Request | None) -> Admission:
        """Admits a new request, or one again with its output, as after a preemption."""
        request = self._random.choice(self._truths)
        output: list[int] = []
        if given_up is not None and len(given_up.output) < len(given_up.truth):
            request, output = given_up, given_up.output
        prompt, sampling = request.prompt, request.sampling
        self.requests[slot] = Request(prompt, sampling, request.truth, list(output))
        self._held[slot] = []
        # A grammar that ends too soon would fail its request.
        least = 0 if sampling.grammar else self._random.choice([0, 9, 50])
        size = min(len(request.truth), len(output) + self._random.randint(1, 40))
        return admit(
            slot,
            prompt + output,
            sampling,
            len(prompt),
            stop_token_ids=self._random.choices(range(VOCAB_SIZE), k=3),
            min_length=len(prompt) + least if least else 0,
            max_length=len(prompt) + size,
            predicted_token_ids=self._spoil(request.truth),
        )

    def _window(self, slot: int, request: Request) -> WindowUpdate:
        truth = request.truth
        base = max(0, len(request.output) - self._random.randint(0, 2))
        tokens = self._spoil(truth[base : base + self._random.randint(0, 24)])
        parents = list(range(-1, len(tokens) - 1))
        num_branches = self._random.choice([0, 0, 1, 3])
        for _ in range(num_branches):
            offset = self._random.randint(0, len(tokens))
            parent = self._random.choice([offset - 1, self._random.randrange(-1, len(tokens) + 1)])
            for token in self._spoil(truth[base + offset :][: self._random.randint(1, 12)]):
                parents.append(min(parent, len(tokens) - 1))
                tokens.append(token)
                parent = len(tokens) - 1
        return WindowUpdate(slot, base, tokens, parents if num_branches else [])

    def _spoil(self, tokens: list[int]) -> list[int]:
        wrong = self._random.choice([0.0, 0.05, 0.3])
        return [
            self._random.randrange(VOCAB_SIZE) if self._random.random() < wrong else token
            for token in tokens
        ]

    def _row(self, slot: int) -> PlannedRow:
        request = self.requests[slot]
        num_known = self._random.choice([1, 3, 11, 30])
        num_drafts = self._random.choice([0, 1, 2, 5, 9, 14])
        # Enough for all there may be; sometimes none for the drafts.
        most = len(request.prompt) + len(request.output) + self._random.choice([1, num_drafts + 1])
        number = max(0, -(-most // BLOCK_SIZE) - len(self._held[slot]))
        new = [self._free.pop() for _ in range(number)]
        self._held[slot] += new
        return PlannedRow(slot, num_known, num_drafts, new)
