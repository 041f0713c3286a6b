"""What one request must get, whatever workers, plans and losses are between."""

from collections import Counter
from typing import Any

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.base.values import Finished, FinishReason, Logprobs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.width.acceptance import Drafter
from tests.scheduler.fake_worker import candidates_of, expected_output, logprob_of

VOCAB_SIZE = 7
TokenPath = tuple[int, ...]
"""Tokens from the begin of an output."""
Place = tuple[float, list[int], list[float]]
"""Log-probability, candidates, and theirs."""


MODELS = {
    *(DraftSource.DRAFT_MODEL, DraftSource.QUANTISED, DraftSource.MEDUSA, DraftSource.EAGLE),
}
"""Drafters with a model."""


class Received:
    """Collects what is reported to one request, position by position."""

    def __init__(self, new: NewRequest) -> None:
        self._new = new
        self.of_prompt: list[Place] = []
        """From the second token of the prompt on."""
        self.of_output: list[Place] = []
        self._num_given = len(new.output_token_ids)
        self._num_checked = [0, 0]
        """Of the output and of the prompt."""

    def add(self, reported: Logprobs) -> None:
        """Takes what is reported with a step; prompts are reported in order, each position once."""
        if reported.num_prompt_tokens:
            assert reported.first_prompt_position == 1 + len(self.of_prompt)
        number = len(reported.logprobs)
        widths = [reported.num_prompt_candidates] * reported.num_prompt_tokens
        widths += [reported.num_candidates] * (number - reported.num_prompt_tokens)
        assert sum(widths) == len(reported.candidate_token_ids) == len(reported.candidate_logprobs)
        first = 0
        pairs = zip(reported.logprobs.tolist(), widths, strict=True)
        for place, (logprob, width) in enumerate(pairs):
            part = slice(first, first + width)
            ids, logprobs = reported.candidate_token_ids[part], reported.candidate_logprobs[part]
            is_prompt = place < reported.num_prompt_tokens
            places = self.of_prompt if is_prompt else self.of_output
            places.append((logprob, ids.tolist(), logprobs.tolist()))
            first += width

    def check(self, output: list[int]) -> None:
        """Compares what is new of it with the tokens that the request has got, at least one."""
        prompt, sampling = self._new.prompt_token_ids, self._new.sampling
        sequence = [*prompt, *output]
        # Of a request that has output already, the prompt was reported before.
        width = None if self._num_given else sampling.num_prompt_logprobs
        self._compare(sequence, 1, len(prompt), width, self.of_prompt)
        first = len(prompt) + self._num_given
        self._compare(sequence, first, len(sequence), sampling.num_logprobs, self.of_output)

    def _compare(
        self, sequence: list[int], first: int, end: int, width: int | None, found: list[Place]
    ) -> None:
        assert len(found) == (0 if width is None else end - first)
        num_checked = self._num_checked[found is self.of_prompt]
        for place in range(first + num_checked, end if width is not None else 0):
            tokens = sequence[: place + 1]
            expected = logprob_of(tokens), *candidates_of(tokens, width or 0, VOCAB_SIZE)
            assert found[place - first] == expected
        self._num_checked[found is self.of_prompt] = len(found)


class Expected:
    """A request that runs or waits: its output so far, its windows, and its account."""

    def __init__(self, new: NewRequest, drafter: Drafter | None) -> None:
        self.new = new
        self._drafter = drafter
        self.output = list(new.output_token_ids)
        self.truth = expected_output(
            new.prompt_token_ids, VOCAB_SIZE, len(new.prompt_token_ids) + 35, set()
        )
        """What its model says, not cut at stop tokens."""
        self.gain = (4096 if len(new.predicted_token_ids) else 0) if new.is_followed else -1
        """What following brings; -1 for what is not followed."""
        self.base = -1
        """Base of the last window that was taken."""
        self.window: dict[TokenPath, int] = {}
        """Position in the prediction of each node of that window, by all output up to it."""
        self.reported = Received(new)
        """What was reported of how likely tokens are."""
        self._sources: Counter[int] = Counter()
        self._marks: dict[int, bool] = {}
        """Whether each position that was drafted was kept."""
        self._observed = list(new.output_token_ids)
        """What proposers were sent of the output."""
        self._num_passes = 0

    @property
    def rests(self) -> bool:
        return 0 <= self.gain < 64

    def follow(self, base: int, nodes: dict[TokenPath, int], gain: int = 256) -> None:
        """Takes a window, which wakes a request that rests."""
        if self.rests:
            self.gain = gain
        start = tuple(self.output[:base])
        self.base = base
        self.window = {start + path: position for path, position in nodes.items()}

    def take(
        self,
        tokens: list[int],
        source: int,
        accepted: int,
        drafted: dict[TokenPath, int],
        positions: list[int] | None,
        *,
        num_of_form: int,
        is_looked_up: bool,
    ) -> None:
        """Takes the output of a pass.

        Args:
            tokens: What it brought.
            source: Where its drafts came from.
            accepted: How many of the tokens were drafts.
            drafted: Positions in the prediction of what was drafted of it or of a window.
            positions: Those that were reported of accepted drafts.
            num_of_form: How many of the accepted drafts, the last ones, the form gave.
            is_looked_up: Whether the worker found its drafts in the prediction.
        """
        assert accepted <= len(tokens)
        self._num_passes += 1
        self._sources[DraftSource.TARGET] += len(tokens) - accepted
        self._sources[DraftSource.FORM] += num_of_form
        accepted -= num_of_form
        expected = [-1] * accepted
        if source == DraftSource.PREDICTION:
            expected = self._account(tokens[:accepted], drafted)
        else:
            self._sources[source] += accepted
        expected += [-1] * num_of_form
        self.output += tokens
        assert self.output == self.truth[: len(self.output)]
        is_wanted = self.new.wants_prediction_positions and expected
        assert positions == (expected if is_wanted else None)
        self._learn_gain(DraftSource.NGRAM if is_looked_up else source, accepted)

    def _account(self, kept: list[int], drafted: dict[TokenPath, int]) -> list[int]:
        """Notes the drafts of a window, of which these were kept; returns their positions."""
        paths = [(*self.output, *kept[: length + 1]) for length in range(len(kept))]
        for path, position in drafted.items():
            if position >= 0:
                self._marks[position] = self._marks.get(position, False) or path in paths
        for path in paths:
            is_predicted = drafted[path] >= 0
            self._sources[DraftSource.PREDICTION if is_predicted else DraftSource.NGRAM] += 1
        return [drafted[path] for path in paths]

    def _learn_gain(self, source: int, accepted: int) -> None:
        """Averages what a pass has brought; a request that gains too little has no window."""
        drafter = self._drafter
        if self.gain >= 0 and drafter is not None and drafter.is_lookup and self.base < 0:
            may_look_up = self.new.predicted_token_ids or self.new.sampling.grammar
            assert source != drafter.source or may_look_up
        if self.gain < 64 or source in MODELS:
            # How a model's pass counts depends on when it was planned, see `learn_from`.
            return
        brought = accepted if source == DraftSource.PREDICTION else 0
        more = brought * 1024 - self.gain
        self.gain += more // (8 if more < 0 else 4)
        if self.rests:
            self.window = {}

    def learn_from(self, gain: int) -> None:
        """Takes the gain that the scheduler has found, which a pass lowers at most so much."""
        assert self.gain - (self.gain + 7) // 8 <= gain <= self.gain
        self.gain = gain
        if self.rests:
            self.window = {}

    def observe(self, tokens: list[int]) -> None:
        """Takes what proposers are sent of the output."""
        assert self.gain >= 0
        self._observed += tokens

    def check_observed(self) -> None:
        """Proposers are sent all of what is awake, in order, and what rests in groups."""
        num_unsent = len(self.output) - len(self._observed)
        assert self._observed == self.output[: len(self._observed)]
        if self.gain >= 64:
            assert num_unsent == 0
        elif self.rests:
            most = 16 if len(self.new.predicted_token_ids) else 128
            assert num_unsent < max(8, min(len(self.output) // 8, most))

    def check_account(self, finished: Finished) -> None:
        """Compares the account with what was delivered; the request may have been aborted."""
        assert list(finished.num_tokens_by_source) == [self._sources[each] for each in DraftSource]
        assert finished.accepted_prediction_tokens == self._sources[DraftSource.PREDICTION]
        assert finished.rejected_prediction_tokens == list(self._marks.values()).count(False)
        assert finished.num_passes == self._num_passes
        assert finished.num_cached_tokens <= len(self.new.prompt_token_ids)

    def check_end(self, finished: Any, max_length: int) -> None:
        """Compares the end that a worker's result brought with what the request asked for."""
        new, tokens = self.new, self.output
        limit = min(len(new.prompt_token_ids) + new.max_tokens, max_length)
        stops = set(new.stop_token_ids)
        assert tokens == expected_output(
            new.prompt_token_ids, VOCAB_SIZE, limit, stops, new.min_tokens
        )
        is_stop = tokens[-1] in stops and len(tokens) >= new.min_tokens
        assert finished.reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        num_drafts = sum(finished.num_tokens_by_source[1:])
        assert finished.num_drafted_tokens >= num_drafts
        self.reported.check(tokens)
        if new.max_draft_tokens == 0:
            assert finished.num_drafted_tokens == num_drafts == 0
