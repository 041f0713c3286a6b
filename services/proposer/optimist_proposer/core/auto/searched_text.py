"""All that an output may repeat, as one text that the output goes on.

With a prediction, or a prompt that is mostly one block (a file to be rewritten), the cursor walks
through these alone; the rest of the prompt is like earlier output. In any other prompt, as agents
and chats send them, it walks through everything.
"""

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from optimist_proposer.core.auto.prompt_blocks import Block, find_blocks, find_numbered_lines
from optimist_proposer.core.lines import INT32
from optimist_proposer.core.sources import SEPARATOR, Sources
from optimist_proposer.core.vocabulary import Vocabulary

_MOST_ENCODED = 65_536
"""Characters of a prompt's readings that are tokenized anew."""
_ESCAPE = "\\n"
_NO_PLACES = array(INT32)

Encode = Callable[[str], Sequence[int]]


class SearchedText:
    """Predictions, readings of the prompt's blocks, and the prompt.

    Attributes:
        token_ids: What stands before the output, with SEPARATOR between texts that do not go on
            with each other [num_places].
        num_predicted: Places that belong to predictions.
        num_aligned: Places that the cursor walks through, from 0 on.
        positions: Prediction positions of the places of predictions [num_predicted].
        starts: Where an output may begin that rewrites something.
        is_rewrite: Whether the output is expected to be a changed text.
        context_start: Where the text begins that the output goes on directly.
    """

    def __init__(self, sources: Sources, vocabulary: Vocabulary) -> None:
        """Lays the sources out; nothing of them is changed."""
        self.num_predicted = sources.num_predicted
        self.positions = sources.prediction_positions[: self.num_predicted]
        self.token_ids = sources.token_ids[: self.num_predicted]
        self.starts: list[int] = []
        prompt = sources.token_ids[self.num_predicted : -1]
        if self.num_predicted:
            ends = [place for place, each in enumerate(self.token_ids, 1) if each == SEPARATOR]
            self.starts = [0, *ends[:-1]]
            self.num_aligned = self.num_predicted
        elif prompt:
            prompt = self._read(prompt, vocabulary)
        self.is_rewrite = bool(self.starts)
        self.context_start = len(self.token_ids)
        self.token_ids.extend(prompt)
        if not self.is_rewrite:
            self.num_aligned = len(self.token_ids)

    def _read(self, prompt: "array[int]", vocabulary: Vocabulary) -> "array[int]":
        """Takes readings of a prompt's blocks; returns what is left of the prompt."""
        texts, encode = vocabulary.token_texts, vocabulary.encode
        num_texts = len(texts)
        pieces = [texts[each] if each < num_texts else "" for each in prompt]
        text = "".join(pieces)
        blocks = find_blocks(text)
        main = max(blocks, key=lambda block: block.end - block.start, default=Block(0, 0))
        if encode is None:
            return prompt
        if main.end - main.start > len(text) // 2:
            return self._cut_out(main, prompt, pieces, encode)
        for reading in _readings(text, blocks):
            self.token_ids.extend(encode(reading))
            self.token_ids.append(SEPARATOR)
        return prompt

    def _cut_out(
        self, block: Block, prompt: "array[int]", pieces: list[str], encode: Encode
    ) -> "array[int]":
        """Takes a block as what is rewritten; returns the prompt with SEPARATOR in its place.

        Tokens that reach over an end of the block are divided there.
        """
        ends = list(accumulate(map(len, pieces)))
        first, last = bisect_left(ends, block.start + 1), bisect_left(ends, block.end)
        before, after = ends[first] - len(pieces[first]), ends[last]
        whole = "".join(pieces[first : last + 1])
        head = tail = _NO_PLACES
        if first == last or before < block.start:
            end = min(ends[first], block.end)
            head = array(INT32, encode(whole[block.start - before : end - before]))
            first += 1
        if first <= last and after > block.end:
            start = ends[last] - len(pieces[last])
            tail = array(INT32, encode(whole[start - before : block.end - before]))
            last -= 1
        self.starts = [0]
        self.token_ids.extend(head + prompt[first : last + 1] + tail)
        self.token_ids.append(SEPARATOR)
        self.num_aligned = len(self.token_ids)
        return prompt[: first - bool(head)] + array(INT32, [SEPARATOR]) + prompt[last + 1 :]


def _readings(text: str, blocks: list[Block]) -> Iterator[str]:
    """Iterates over blocks as answers write them, the last first, as far as they may be encoded.

    Files without their line numbers; and all blocks escaped, if there is JSON in the prompt.
    """
    numbered = find_numbered_lines(text)
    files = [each.text for each in reversed(numbered)]
    escaped: list[str] = []
    if _ESCAPE in text:
        starts = {each.start: each.text for each in numbered}
        starts |= {each.start: text[each.start : each.end] for each in blocks}
        ordered = [starts[start] for start in sorted(starts, reverse=True)]
        escaped = [json.dumps(each, ensure_ascii=False)[1:-1] for each in ordered]
    budget = _MOST_ENCODED
    for reading in (*files, *escaped):
        if len(reading) <= budget:
            budget -= len(reading)
            yield reading
