"""All that an output may repeat, as one text that the output goes on.

With a prediction, or a prompt that is mostly one block (a file to be rewritten), the cursor walks
through these alone; the rest of the prompt is like earlier output. In any other prompt, as agents
and chats send them, it walks through everything.
"""

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np

from optimist_aligner.text.prompt_blocks import Block, find_blocks, find_numbered_lines
from optimist_aligner.text.sources import INT32, NO_POSITION, SEPARATOR, Sources
from optimist_aligner.text.vocabulary import Encode, Vocabulary

_MOST_ENCODED: Final = 65_536
"""Characters of a prompt's readings that are tokenized anew."""
_ESCAPE: Final = "\\n"

Column: TypeAlias = "array[int]"


class SearchedText:
    """Predictions, readings of the prompt's blocks, and the prompt.

    Attributes:
        token_ids: What stands before the output, with SEPARATOR between texts that do not go on
            with each other [num_tokens].
        num_predicted: Tokens that belong to predictions.
        num_aligned: Tokens that the cursor walks through, from 0 on.
        positions: Where in the predictions or the prompt each token is, see `Sources.positions`;
            NO_POSITION in what is tokenized anew [num_tokens].
        starts: Where an output may begin that rewrites something.
        is_rewrite: Whether the output is expected to be a changed text.
        has_readings: Whether the prompt has blocks, numbered lines or JSON strings, as those of
            agents have.
        context_start: Where the text begins that the output goes on directly.
    """

    def __init__(self, sources: Sources, vocabulary: Vocabulary) -> None:
        """Lays the sources out; nothing of them is changed."""
        self.num_predicted = num_predicted = sources.num_predicted
        self.positions = sources.positions[:num_predicted]
        self.token_ids = sources.token_ids[:num_predicted]
        self.starts: list[int] = []
        self.has_readings = False
        prompt = sources.token_ids[num_predicted:-1]
        positions = sources.positions[num_predicted:-1]
        if num_predicted:
            separators = np.flatnonzero(np.frombuffer(self.token_ids, np.intc) == SEPARATOR)
            self.starts = [0, *(separators[:-1] + 1).tolist()]
            self.num_aligned = num_predicted
        elif prompt:
            prompt, positions = self._read(prompt, positions, vocabulary)
        self.is_rewrite = bool(self.starts)
        self.context_start = len(self.token_ids)
        self._append(prompt, positions)
        if not self.is_rewrite:
            self.num_aligned = len(self.token_ids)

    def _append(self, token_ids: Sequence[int], positions: "array[int] | None" = None) -> None:
        self.token_ids.extend(token_ids)
        self.positions.extend(positions or array(INT32, [NO_POSITION]) * len(token_ids))

    def _read(
        self, prompt: Column, positions: Column, vocabulary: Vocabulary
    ) -> tuple[Column, Column]:
        """Takes readings of a prompt's blocks; returns what is left of the prompt."""
        texts, encode = vocabulary.token_texts, vocabulary.encode
        if encode is None:
            return prompt, positions
        num_texts = len(texts)
        pieces = [texts[each] if each < num_texts else "" for each in prompt]
        text = "".join(pieces)
        blocks = find_blocks(text)
        main = next((block for block in blocks if block.end - block.start > len(text) // 2), None)
        if main is not None and main.is_text:
            return self._cut_out(main, prompt, positions, pieces, encode)
        readings = list(_readings(text, blocks))
        self.has_readings = bool(blocks or readings) or _ESCAPE in text
        for reading in readings:
            self._append([*encode(reading), SEPARATOR])
        return prompt, positions

    def _cut_out(
        self, block: Block, prompt: Column, positions: Column, pieces: list[str], encode: Encode
    ) -> tuple[Column, Column]:
        """Takes a block as what is rewritten; returns the prompt with SEPARATOR in its place.

        Tokens that reach over an end of the block are divided there.
        """
        ends = list(accumulate(map(len, pieces)))
        first, last = bisect_left(ends, block.start + 1), bisect_left(ends, block.end)
        before, after = ends[first] - len(pieces[first]), ends[last]
        whole = "".join(pieces[first : last + 1])
        head: Sequence[int] = ()
        tail: Sequence[int] = ()
        if first == last or before < block.start:
            end = min(ends[first], block.end)
            head = encode(whole[block.start - before : end - before])
            first += 1
        if first <= last and after > block.end:
            start = ends[last] - len(pieces[last])
            tail = encode(whole[start - before : block.end - before])
            last -= 1
        self.starts = [0]
        self._append(head)
        self._append(prompt[first : last + 1], positions[first : last + 1])
        self._append([*tail, SEPARATOR])
        self.num_aligned = len(self.token_ids)
        for column, gap in ((prompt, SEPARATOR), (positions, NO_POSITION)):
            column[first - bool(head) : last + 1] = array(INT32, [gap])
        return prompt, positions


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
