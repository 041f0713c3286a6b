"""One answer in the making: steps of tokens in, pieces of text out."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from itertools import accumulate, pairwise

from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.detokenize import Detokenizer, StopStrings
from optimist_gateway.core.answer.output import (
    MAX_COUNTED,
    Describe,
    Finished,
    FinishReason,
    LogprobReader,
    StepLogprobs,
    StepOutput,
    TokenLogprob,
    TokenLogprobs,
    Usage,
    token_logprob,
)
from optimist_gateway.core.answer.provenance import PROMPT_RUN, Provenance, Segment
from optimist_gateway.core.answer.spans import NOT_PREDICTED, Prompt
from optimist_gateway.core.answer.thinking import ThinkingReader


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
    num_thinking_tokens: int = 0
    """How many of the tokens, from the front, are what the model thinks before it answers."""
    num_drafts: int = 0
    """How many of the tokens, from the front, were drafts, predicted or not."""
    draft_source: DraftSource = DraftSource.TARGET
    """Where these came from."""


@dataclass(slots=True, eq=False)
class Answer:
    """Turns the outputs of one request into text and keeps its account.

    With stop strings, tokens are looked at one by one, so that tokens accepted after the one that
    completes a stop string are no part of the answer, however wide the steps are.
    """

    num_prompt_tokens: int
    detokenizer: Detokenizer
    stop: InitVar[Sequence[str]]
    """Strings that end it."""
    min_tokens: int
    """Number of its tokens before which these do not."""
    logprobs: LogprobReader | None = None
    """Reads how likely tokens were; None if it is not wanted."""
    provenance: Provenance | None = None
    """Splits text by its source; None if it is not wanted."""
    has_prediction: bool = True
    """Whether the request has one; without, proposers draft from its own text."""
    thinking: ThinkingReader | None = None
    """Finds where the model ends to think; None once it has, or if nobody asks."""
    _num_thinking_tokens: int = field(init=False, default=0)
    _stop: StopStrings = field(init=False)
    _reads_singly: bool = field(init=False)
    """Whether it matters which text is of which token."""
    _reads_at_once: bool = field(init=False)
    num_tokens: int = field(init=False, default=0)
    """Its tokens so far."""
    _num_passes_by_length: list[int] = field(init=False)
    _num_accepted_by_source: list[int] = field(init=False)
    _account: Finished | None = field(init=False, default=None)
    """The scheduler's, which may count tokens that came after a stop string."""

    def __post_init__(self, stop: Sequence[str]) -> None:
        self._stop = StopStrings(stop)
        self._reads_singly = bool(stop) or self.logprobs is not None or self.provenance is not None
        self._reads_at_once = not self._reads_singly and self.thinking is None
        self._num_passes_by_length = [0] * (MAX_COUNTED + 1)
        # Indexed by the number of a source: members of an enumeration take long to hash.
        self._num_accepted_by_source = [0] * len(DraftSource)

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
            self.num_tokens += 1
            self._num_passes_by_length[0] += 1
            return Piece(self.detokenizer.push(token_ids), token_ids, 0, 0)
        self.settle(output.finished)
        reason = output.finished.reason if output.finished else None
        shown = token_ids
        if reason is FinishReason.STOP:
            shown = shown[:-1]
        num_thinking = self.num_thinking_tokens
        is_predicted = output.draft_source is DraftSource.PREDICTION
        num_predicted = output.num_base_tokens if is_predicted else 0
        predicted, rest, lengths = self._text(shown, num_predicted)
        if self._stop.found:
            reason = FinishReason.STOP_STRING
            token_ids = token_ids[: len(lengths)]
        elif reason is not None:
            rest += self._stop.push(self.detokenizer.flush()) + self._stop.flush()
        self._count(output, len(token_ids))
        num_predicted = min(num_predicted, len(token_ids))
        piece = Piece(predicted + rest, token_ids, num_predicted, len(predicted), reason)
        num_thinking = self.num_thinking_tokens - num_thinking
        piece.num_thinking_tokens = min(num_thinking, len(token_ids))
        piece.num_drafts = min(output.num_accepted_tokens, len(token_ids))
        if piece.num_drafts:
            piece.draft_source = self._source(output)
        if self.logprobs is not None:
            piece.logprobs = self.logprobs.read(output, token_ids, lengths)
        if self.provenance is not None:
            piece.segments = self.provenance.push(output, len(token_ids), lengths, piece.text)
        return piece

    def settle(self, finished: Finished | None) -> None:
        """Takes what only the scheduler knows of the account, however the answer ended.

        Of an answer that another scheduler began it knows a part, which is not the whole.
        """
        if finished is not None and finished.is_whole:
            self._account = finished

    @property
    def num_thinking_tokens(self) -> int:
        """Its tokens up to the one with which the model has ended to think, so far."""
        is_inside = self.thinking is not None and self.thinking.is_inside
        return self.num_tokens if is_inside else self._num_thinking_tokens

    def usage(self) -> Usage:
        """Returns the account so far; rejected tokens are known when the request has ended."""
        account = self._account
        # It also counts what came after a stop string, and the token after a prompt alone.
        if account is not None and not self._stop.found and self.num_tokens:
            num_passes, by_source = account.num_passes, account.num_tokens_by_source
            num_accepted = account.accepted_prediction_tokens
        else:
            num_passes, by_source = sum(self._num_passes_by_length), self._num_by_source()
            num_accepted = by_source[DraftSource.PREDICTION]
        num_cached = account.num_cached_tokens if account else 0
        counts = self._num_passes_by_length
        num_counts = max((length + 1 for length, count in enumerate(counts) if count), default=0)
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_tokens,
            accepted_prediction_tokens=num_accepted,
            rejected_prediction_tokens=account.rejected_prediction_tokens if account else None,
            cached_prompt_tokens=min(num_cached, self.num_prompt_tokens),
            num_passes=num_passes,
            reasoning_tokens=self.num_thinking_tokens,
            num_tokens_by_source={
                source: by_source[source] for source in sorted(by_source) if by_source[source]
            },
            num_drafted_tokens=account.num_drafted_tokens if account else None,
            accepted_length_histogram=counts[:num_counts],
        )

    def _num_by_source(self) -> dict[DraftSource, int]:
        by_source = {source: self._num_accepted_by_source[source] for source in DraftSource}
        by_source[DraftSource.TARGET] += self.num_tokens - sum(self._num_accepted_by_source)
        return by_source

    def _count(self, output: StepOutput, num_tokens: int) -> None:
        """Adds the tokens of a step that are part of the answer to its account."""
        self.num_tokens += num_tokens
        num_accepted = output.num_accepted_tokens
        if num_accepted:
            num_accepted, num_base = min(num_accepted, num_tokens), output.num_base_tokens
            num_base = min(num_base, num_tokens)
            self._num_accepted_by_source[self._source(output)] += num_base
            self._num_accepted_by_source[DraftSource.FORM] += num_accepted - num_base
            if output.prediction_positions is not None and self.has_prediction:
                # What a proposer took from the request's own text is in no prediction.
                num_own = output.prediction_positions[:num_base].count(NOT_PREDICTED)
                self._num_accepted_by_source[output.draft_source] -= num_own
                self._num_accepted_by_source[DraftSource.NGRAM] += num_own
        if num_tokens:
            length = num_accepted if num_accepted < MAX_COUNTED else MAX_COUNTED
            self._num_passes_by_length[length] += 1

    def _source(self, output: StepOutput) -> DraftSource:
        if output.draft_source is DraftSource.PREDICTION and not self.has_prediction:
            return DraftSource.NGRAM
        return output.draft_source

    def _text(self, token_ids: list[int], num_predicted: int) -> tuple[str, str, list[int]]:
        """Reads tokens up to the one that completes a stop string.

        Returns the text of predicted tokens, that of the rest, and how many characters each token
        that was read added to the decoded text; the latter only if details are wanted.
        """
        if self._reads_at_once:
            if not num_predicted:
                return "", self.detokenizer.push(token_ids), []
            predicted = self.detokenizer.push(token_ids[:num_predicted])
            return predicted, self.detokenizer.push(token_ids[num_predicted:]), []
        predicted = rest = ""
        lengths: list[int] = []
        for index, token in enumerate(token_ids):
            text = self.detokenizer.push([token])
            lengths.append(len(text))
            if self.thinking is not None:
                self._think(self.thinking, text, self.num_tokens + index + 1)
            if self.num_tokens + index >= self.min_tokens:
                text = self._stop.push(text)
            if index < num_predicted:
                predicted += text
            else:
                rest += text
            if self._stop.found:
                break
        return predicted, rest, lengths

    def _think(self, thinking: ThinkingReader, text: str, num_tokens: int) -> None:
        """Takes the text of a token, with which the answer has so many."""
        was_inside = thinking.is_inside
        thinking.push(text)
        if was_inside or thinking.is_inside:
            self._num_thinking_tokens = num_tokens
        if thinking.has_ended:
            self.thinking, self._reads_at_once = None, not self._reads_singly


_ECHOED_TOKENS = 1024
"""Of a prompt in one piece, if their log-probabilities are in it."""


@dataclass(slots=True, eq=False)
class Echo:
    """The prompt as the beginning of an answer, once everything is there that is shown of it."""

    prompt: Prompt
    detokenizer: Detokenizer
    """Turns its tokens into text, special ones included."""
    describe: Describe | None
    """Knows the vocabulary; None if log-probabilities are not wanted."""
    with_segments: bool
    """Whether it says where the text came from."""
    _logprobs: list[TokenLogprobs] = field(init=False, default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether everything is there that is to be shown."""
        return self.describe is None or len(self._logprobs) >= len(self.prompt.token_ids) - 1

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

    def pieces(self) -> list[Piece]:
        """Returns the prompt as pieces of the answer, each with bounded log-probabilities."""
        text, token_ids = self.prompt.text, self.prompt.token_ids
        if self.describe is None:
            return [Piece(text, [], 0, 0, segments=self._segments(text, len(token_ids)))]
        columns = zip(token_ids, [None, *self._logprobs], self._offsets(), strict=True)
        logprobs = [token_logprob(*of_token, self.describe) for of_token in columns]
        starts = range(0, len(token_ids), _ECHOED_TOKENS)
        begins = [0, *(logprobs[start].text_offset for start in starts[1:]), len(text)]
        pieces = []
        for start, (begin, end) in zip(starts, pairwise(begins), strict=True):
            # All of them are one run, whose tokens are counted once.
            segments = self._segments(text[begin:end], 0 if start else len(token_ids))
            shown = logprobs[start : start + _ECHOED_TOKENS]
            pieces.append(Piece(text[begin:end], [], 0, 0, logprobs=shown, segments=segments))
        return pieces

    def _segments(self, text: str, num_tokens: int) -> list[Segment] | None:
        return [Segment(PROMPT_RUN, None, text, num_tokens)] if self.with_segments else None

    def _offsets(self) -> list[int]:
        """Returns where each token begins in the text.

        What the tokenizer puts before the text, such as a token that begins every prompt, begins
        with it.
        """
        lengths = (len(self.detokenizer.push([token])) for token in self.prompt.token_ids)
        *starts, length = accumulate(lengths, initial=0)
        before = max(length + len(self.detokenizer.flush()) - len(self.prompt.text), 0)
        return [min(max(start - before, 0), len(self.prompt.text)) for start in starts]
