"""The prompt as the beginning of an answer."""

from optimist_gateway.core.answer.answer import Piece
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.logprobs import Describe, TokenLogprob, token_logprob
from optimist_gateway.core.answer.output import StepLogprobs, TokenLogprobs
from optimist_gateway.core.answer.provenance import PROMPT_RUN, Segment
from optimist_gateway.core.answer.spans import Prompt


class Echo:
    """Waits for the log-probabilities of a prompt, if they are wanted, and gives the prompt out."""

    def __init__(
        self,
        prompt: Prompt,
        text: str,
        detokenizer: Detokenizer,
        describe: Describe | None,
        *,
        with_segments: bool,
    ) -> None:
        """Takes what is to be shown.

        Args:
            prompt: The prompt.
            text: What is shown of it.
            detokenizer: The state that turns its tokens into text, special ones included.
            describe: Knows the vocabulary; None if log-probabilities are not wanted.
            with_segments: Whether it says where the text came from.
        """
        self.text = text
        self._token_ids = prompt.token_ids
        self._detokenizer = detokenizer
        self._describe = describe
        self._with_segments = with_segments
        self._logprobs: list[TokenLogprobs] = []

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""
        return len(self._token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether everything is there that is to be shown."""
        return self._describe is None or len(self._logprobs) >= len(self._token_ids) - 1

    def add(self, logprobs: StepLogprobs | None) -> None:
        """Takes what a step says of the prompt; raises ValueError if it leaves tokens out."""
        if logprobs is None or not logprobs.prompt:
            return
        if logprobs.first_prompt_position != len(self._logprobs) + 1:
            raise ValueError(
                f"the log-probabilities of a prompt go on at {logprobs.first_prompt_position} "
                f"after {len(self._logprobs)} of them"
            )
        self._logprobs += logprobs.prompt

    def piece(self) -> Piece:
        """Returns the prompt as a piece of the answer."""
        segments = None
        if self._with_segments:
            segments = [Segment(PROMPT_RUN, None, self.text, len(self._token_ids))]
        return Piece(self.text, [], 0, 0, logprobs=self._token_logprobs(), segments=segments)

    def _token_logprobs(self) -> list[TokenLogprob] | None:
        if self._describe is None:
            return None
        offsets = self._offsets()
        logprobs: list[TokenLogprobs | None] = [None, *self._logprobs]
        return [
            token_logprob(token, of_token, offset, self._describe)
            for token, of_token, offset in zip(self._token_ids, logprobs, offsets, strict=True)
        ]

    def _offsets(self) -> list[int]:
        """Returns where each token begins in the text.

        What the tokenizer puts before the text, such as a token that begins every prompt, begins
        with it.
        """
        starts = []
        length = 0
        for token in self._token_ids:
            starts.append(length)
            length += len(self._detokenizer.push([token]))
        length += len(self._detokenizer.flush())
        before = max(length - len(self.text), 0)
        return [min(max(start - before, 0), len(self.text)) for start in starts]
