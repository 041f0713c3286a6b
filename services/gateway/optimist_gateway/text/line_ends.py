"""The line ends of a prediction: those that the answer will have."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

_LINE_END = re.compile("\r\n|\r|\n")

LineEnds = Counter[tuple[str, str]]
"""How many lines of this text end with this line end."""


def line_ends(texts: Sequence[str]) -> LineEnds:
    """Returns the lines of texts; the last line of a text, which has no end, is left out."""
    return Counter(line for text in texts for line in _lines(text))


def with_line_ends(prediction: str, prompt: LineEnds) -> str:
    """Returns a prediction with the line ends of the prompt, if its own are others.

    A model copies the line ends that it reads, and writes LF if it reads none. The lines that
    prompt and prediction have in common tell which these are, as an instruction or another file
    may have others; without such lines, all do. What most of the lines end with counts: a text in
    which a few end differently stays as it is, as in the prompt.
    """
    own, in_common, others = Counter[str](), Counter[str](), Counter[str]()
    lines = line_ends([prediction])
    texts = {text for text, _ in lines if text.strip()}
    for (_, end), count in lines.items():
        own[end] += count
    for (text, end), count in prompt.items():
        (in_common if text in texts else others)[end] += count
    expected = in_common or others or Counter("\n")
    if not own or expected[own.most_common(1)[0][0]] == max(expected.values()):
        return prediction
    return with_lf(prediction).replace("\n", expected.most_common(1)[0][0])


def with_lf(text: str) -> str:
    """Returns a text whose lines end with LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def sent_spans(spans: Sequence[tuple[int, int]], read: str, sent: str) -> list[tuple[int, int]]:
    """Returns spans of a text as spans of another that differs from it in its line ends alone."""
    ends, sent_ends = ([one.end() for one in _LINE_END.finditer(text)] for text in (read, sent))
    shifts = [0, *(there - here for here, there in zip(ends, sent_ends, strict=True))]

    def sent_position(position: int) -> int:
        return position + shifts[bisect_right(ends, position)]

    return [(sent_position(start), sent_position(end)) for start, end in spans]


def _lines(text: str) -> Iterator[tuple[str, str]]:
    start = 0
    for end in _LINE_END.finditer(text):
        yield text[start : end.start()], end[0]
        start = end.end()
