"""What was reported of how likely a request's tokens are, checked against the worker's model."""

from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.values import Logprobs
from tests.scheduler.fake_worker import candidates_of, logprob_of

Place = tuple[float, list[int], list[float]]
"""Log-probability, candidates, and theirs."""


class Received:
    """Collects what is reported to one request, position by position."""

    def __init__(self, new: NewRequest, vocab_size: int = 7) -> None:
        self._new, self._vocab_size = new, vocab_size
        self.of_prompt: list[Place] = []
        """From the second token of the prompt on."""
        self.of_output: list[Place] = []

    def add(self, reported: Logprobs) -> None:
        """Takes what is reported with a step; prompts are reported in order, each position once."""
        if reported.num_prompt_tokens:
            assert reported.first_prompt_position == 1 + len(self.of_prompt)
        number = len(reported.logprobs)
        widths = [reported.num_prompt_candidates] * reported.num_prompt_tokens
        widths += [reported.num_candidates] * (number - reported.num_prompt_tokens)
        assert sum(widths) == len(reported.candidate_token_ids) == len(reported.candidate_logprobs)
        first = 0
        for place, (logprob, width) in enumerate(
            zip(reported.logprobs.tolist(), widths, strict=True)
        ):
            part = slice(first, first + width)
            ids, logprobs = reported.candidate_token_ids[part], reported.candidate_logprobs[part]
            is_prompt = place < reported.num_prompt_tokens
            places = self.of_prompt if is_prompt else self.of_output
            places.append((logprob, ids.tolist(), logprobs.tolist()))
            first += width

    def check(self, output: list[int]) -> None:
        """Compares it with the tokens that the request has got, at least one."""
        prompt, sampling = self._new.prompt_token_ids, self._new.sampling
        sequence = [*prompt, *output]
        assert self.of_prompt == self._expect(
            sequence, range(1, len(prompt)), sampling.num_prompt_logprobs
        )
        assert self.of_output == self._expect(
            sequence, range(len(prompt), len(sequence)), sampling.num_logprobs
        )

    def _expect(self, sequence: list[int], places: range, width: int | None) -> list[Place]:
        if width is None:
            return []
        return [
            (
                logprob_of(sequence[: place + 1]),
                *candidates_of(sequence[: place + 1], width, self._vocab_size),
            )
            for place in places
        ]
