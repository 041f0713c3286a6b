"""What is told of an answer beyond its text, if the request asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from optimist_gateway.core.answer.logprobs import Describe, TokenLogprob, token_logprob
from optimist_gateway.core.answer.output import StepOutput
from optimist_gateway.core.answer.provenance import Provenance, Segment


@dataclass(slots=True)
class Detail:
    """Tells of the tokens of one answer, step by step."""

    describe: Describe | None
    """Knows the vocabulary; None if log-probabilities are not told."""
    provenance: Provenance | None
    """None if it is not told."""
    text_offset: int = 0
    """Where the text of the next token begins in that of the choice, in characters."""

    def logprobs(
        self, output: StepOutput, token_ids: Sequence[int], lengths: Sequence[int]
    ) -> list[TokenLogprob] | None:
        """Returns how likely the tokens of a step were; None if that is not told.

        Args:
            output: The step.
            token_ids: Those of its tokens that are part of the answer.
            lengths: How many characters each of them added to the decoded text, those that are not
                shown left out.

        Raises:
            ValueError: The scheduler does not say it.
        """
        if self.describe is None:
            return None
        if token_ids and (output.logprobs is None or not output.logprobs.tokens):
            raise ValueError("tokens came without their log-probabilities")
        told = []
        for index, token in enumerate(token_ids):
            logprobs = output.logprobs.tokens[index] if output.logprobs else None
            told.append(token_logprob(token, logprobs, self.text_offset, self.describe))
            self.text_offset += lengths[index] if index < len(lengths) else 0
        return told

    def segments(
        self, output: StepOutput, num_tokens: int, lengths: Sequence[int], text: str
    ) -> list[Segment] | None:
        """Returns where a piece came from, see `Provenance.push`; None if that is not told."""
        if self.provenance is None:
            return None
        return self.provenance.push(output, num_tokens, lengths, text)
