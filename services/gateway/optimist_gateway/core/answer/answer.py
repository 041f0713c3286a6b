"""One answer in the making: steps of tokens in, pieces of text out."""

from collections.abc import Sequence
from dataclasses import dataclass

from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.detokenize import Detokenizer, StopStrings
from optimist_gateway.core.answer.logprobs import LogprobReader, TokenLogprob
from optimist_gateway.core.answer.output import (
    MAX_COUNTED,
    Finished,
    FinishReason,
    Speculation,
    StepOutput,
    Usage,
)
from optimist_gateway.core.answer.provenance import Provenance, Segment
from optimist_gateway.core.answer.spans import NOT_PREDICTED


@dataclass(slots=True)
class Piece:
    """What one step adds to an answer; not changed once it is made."""

    text: str
    token_ids: list[int]
    num_accepted_tokens: int
    """How many of the tokens, from the front, were predicted ones."""
    predicted_text_length: int
    """How many characters of the text, from the front, stem from predicted tokens."""
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] | None = None
    """If they are wanted: one for each of the tokens, also those that are not shown (a stop token,
    the end of a stop string); with the piece of an echoed prompt, for each token of the prompt."""
    segments: list[Segment] | None = None
    """If they are wanted: where the tokens and the text came from."""
    num_drafts: int = 0
    """How many of the tokens, from the front, were drafts, predicted or not."""
    draft_source: DraftSource = DraftSource.TARGET
    """Where these came from."""


class Answer:
    """Turns the outputs of one request into text and keeps its account.

    With stop strings, tokens are looked at one by one, so that tokens accepted after the one that
    completes a stop string are no part of the answer, however wide the steps are.
    """

    __slots__ = (
        "_detokenizer",
        "_finished",
        "_has_prediction",
        "_logprobs",
        "_min_tokens",
        "_num_accepted_by_source",
        "_num_cached",
        "_num_drafted",
        "_num_passes_by_length",
        "_num_plain_steps",
        "_num_prompt_tokens",
        "_num_rejected",
        "_num_tokens",
        "_provenance",
        "_reads_at_once",
        "_stop",
        "_sum_logprobs",
    )

    def __init__(
        self,
        num_prompt_tokens: int,
        detokenizer: Detokenizer,
        stop: Sequence[str],
        min_tokens: int,
        logprobs: LogprobReader | None = None,
        provenance: Provenance | None = None,
        *,
        has_prediction: bool = True,
    ) -> None:
        """Takes what the request says of the answer.

        Args:
            num_prompt_tokens: Length of the prompt.
            detokenizer: The state that turns its tokens into text.
            stop: Strings that end it.
            min_tokens: Number of tokens before which these do not.
            logprobs: Reads how likely tokens were; None if it is not wanted.
            provenance: Splits text by its source; None if it is not wanted.
            has_prediction: Whether the request has one; without, proposers draft from its own text.
        """
        self._num_prompt_tokens = num_prompt_tokens
        self._detokenizer = detokenizer
        self._stop = StopStrings(stop)
        self._min_tokens = min_tokens
        self._logprobs, self._provenance = logprobs, provenance
        self._has_prediction = has_prediction
        self._reads_at_once = not stop and logprobs is None and provenance is None
        self._num_tokens = 0
        self._num_plain_steps = 0
        """Steps of one token that are in none of the other counts."""
        self._sum_logprobs = 0.0
        self._num_drafted: int | None = None
        self._num_passes_by_length = [0] * (MAX_COUNTED + 1)
        # Indexed by the number of a source: members of an enumeration take long to hash.
        self._num_accepted_by_source = [0] * len(DraftSource)
        self._finished: Finished | None = None
        self._num_rejected: int | None = None
        self._num_cached = 0

    def push(self, output: StepOutput) -> Piece:
        """Adds the output of one step.

        A stop string, which the scheduler does not know, ends the answer with STOP_STRING. The stop
        token of an answer is one of its tokens but not shown.
        """
        token_ids = output.token_ids
        if (
            self._reads_at_once
            and len(token_ids) == 1
            and not output.num_accepted_tokens
            and output.finished is None
            and output.logprobs is None
        ):
            # Most steps bring a token of the model's own, and most answers are text alone.
            self._num_plain_steps += 1
            return Piece(self._detokenizer.push(token_ids), token_ids, 0, 0)
        self._finished = output.finished
        self.settle(output.finished)
        reason = output.finished.reason if output.finished else None
        shown = token_ids
        if reason is FinishReason.STOP:
            shown = shown[:-1]
        is_predicted = output.draft_source is DraftSource.PREDICTION
        num_predicted = output.num_accepted_tokens if is_predicted else 0
        predicted, rest, lengths = self._text(shown, num_predicted)
        if self._stop.found:
            reason = FinishReason.STOP_STRING
            token_ids = token_ids[: len(lengths)]
            # The scheduler's account would include what came after the stop string.
            self._finished = None
        elif reason is not None:
            rest += self._stop.push(self._detokenizer.flush()) + self._stop.flush()
        self._count(output, len(token_ids))
        num_predicted = min(num_predicted, len(token_ids))
        piece = Piece(predicted + rest, token_ids, num_predicted, len(predicted), reason)
        piece.num_drafts = min(output.num_accepted_tokens, len(token_ids))
        if piece.num_drafts:
            piece.draft_source = self._source(output)
        if self._logprobs is not None:
            piece.logprobs = self._logprobs.read(output, token_ids, lengths)
        if self._provenance is not None:
            piece.segments = self._provenance.push(output, len(token_ids), lengths, piece.text)
        return piece

    def settle(self, finished: Finished | None) -> None:
        """Takes what only the scheduler knows of the account, however the answer ended.

        Of an answer that another scheduler began it knows a part, which is not the whole.
        """
        if finished is not None and finished.is_whole:
            self._num_rejected = finished.rejected_prediction_tokens
            self._num_drafted = finished.num_drafted_tokens
            self._num_cached = finished.num_cached_tokens

    @property
    def num_tokens(self) -> int:
        """Its tokens so far."""
        return self._num_tokens + self._num_plain_steps

    def mean_logprob(self) -> float:
        """Returns the log-probability per token so far; 0 if there is none or it is not known."""
        return self._sum_logprobs / self.num_tokens if self.num_tokens else 0.0

    def speculation(self) -> Speculation:
        """Returns what drafts were worth so far."""
        counts = self._passes_by_length()
        num_counts = max((length + 1 for length, count in enumerate(counts) if count), default=0)
        return Speculation(
            num_passes=sum(counts),
            num_tokens=self.num_tokens,
            num_accepted_tokens=sum(self._num_accepted_by_source),
            num_drafted_tokens=self._num_drafted,
            accepted_length_histogram=counts[:num_counts],
        )

    def usage(self) -> Usage:
        """Returns the account so far; rejected tokens are known when the request has ended."""
        finished = self._finished
        if finished is not None and not finished.is_whole:
            # The steps have all of it.
            finished = None
        by_source = finished.num_tokens_by_source if finished else self._num_by_source()
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self.num_tokens,
            accepted_prediction_tokens=(
                finished.accepted_prediction_tokens
                if finished
                else by_source[DraftSource.PREDICTION]
            ),
            rejected_prediction_tokens=self._num_rejected,
            cached_prompt_tokens=min(self._num_cached, self._num_prompt_tokens),
            num_passes=finished.num_passes if finished else sum(self._passes_by_length()),
            num_tokens_by_source={
                source: by_source[source] for source in sorted(by_source) if by_source[source]
            },
        )

    def _num_by_source(self) -> dict[DraftSource, int]:
        by_source = {source: self._num_accepted_by_source[source] for source in DraftSource}
        by_source[DraftSource.TARGET] += self.num_tokens - sum(self._num_accepted_by_source)
        return by_source

    def _passes_by_length(self) -> list[int]:
        """Returns how many steps had 0, 1, 2, ... accepted drafts."""
        none, *others = self._num_passes_by_length
        return [none + self._num_plain_steps, *others]

    def _count(self, output: StepOutput, num_tokens: int) -> None:
        """Adds the tokens of a step that are part of the answer to its account."""
        self._num_tokens += num_tokens
        num_accepted = output.num_accepted_tokens
        if num_accepted:
            num_accepted = min(num_accepted, num_tokens)
            self._num_accepted_by_source[self._source(output)] += num_accepted
            if output.prediction_positions is not None and self._has_prediction:
                # What a proposer took from the request's own text is in no prediction.
                num_own = output.prediction_positions[:num_accepted].count(NOT_PREDICTED)
                self._num_accepted_by_source[output.draft_source] -= num_own
                self._num_accepted_by_source[DraftSource.NGRAM] += num_own
        if num_tokens:
            length = num_accepted if num_accepted < MAX_COUNTED else MAX_COUNTED
            self._num_passes_by_length[length] += 1
        if output.logprobs is not None:
            self._sum_logprobs += sum(one.logprob for one in output.logprobs.tokens[:num_tokens])

    def _source(self, output: StepOutput) -> DraftSource:
        if output.draft_source is DraftSource.PREDICTION and not self._has_prediction:
            return DraftSource.NGRAM
        return output.draft_source

    def _text(self, token_ids: list[int], num_predicted: int) -> tuple[str, str, list[int]]:
        """Reads tokens up to the one that completes a stop string.

        Returns:
            The text of predicted tokens, that of the rest, and how many characters each token that
            was read added to the decoded text. Without stop strings all are read, and the numbers
            of characters are there only if details are wanted.
        """
        if self._reads_at_once:
            if not num_predicted:
                return "", self._detokenizer.push(token_ids), []
            predicted = self._detokenizer.push(token_ids[:num_predicted])
            return predicted, self._detokenizer.push(token_ids[num_predicted:]), []
        predicted = rest = ""
        lengths: list[int] = []
        for index, token in enumerate(token_ids):
            text = self._detokenizer.push([token])
            lengths.append(len(text))
            if self._num_tokens + index >= self._min_tokens:
                text = self._stop.push(text)
            if index < num_predicted:
                predicted += text
            else:
                rest += text
            if self._stop.found:
                break
        return predicted, rest, lengths
