"""Where the output itself says what was said last."""

from optimist_aligner.text.context_index import TOKEN_BITS, TOKEN_OFFSET

_NOWHERE: list[int] = []


class OutputIndex:
    """Offsets by the one, two or three tokens before them, oldest first; grows with the output."""

    def __init__(self, start: int) -> None:
        """Indexes what is appended to a text from offset `start` on."""
        self._start = start
        # Most contexts are met once: a list for each would be most of the memory.
        self._orders: tuple[dict[int, int | list[int]], ...] = ({}, {}, {})

    def extend(self, text: list[int], first: int) -> None:
        """Takes the tokens of the text from offset `first` on, which were just appended."""
        ones, twos, threes = self._orders
        start = self._start
        last = text[first - 1] + TOKEN_OFFSET if first > start else 0
        before = text[first - 2] + TOKEN_OFFSET if first - 1 > start else 0
        for number, token_id in enumerate(text[first:], first + 1):
            key = token_id + TOKEN_OFFSET
            # One object for all three: mypyc makes one of a plain integer each time.
            offset: int | list[int] = number
            _add(ones, key, offset)
            two = (key << TOKEN_BITS) | last
            if last:
                _add(twos, two, offset)
                if before:
                    three = (two << TOKEN_BITS) | before
                    _add(threes, three, offset)
            before, last = last, key

    def find(self, order: int, key: int) -> list[int]:
        """Returns the offsets after a context; the last one may be the end of the text."""
        offsets = self._orders[order - 1].get(key, _NOWHERE)
        return [offsets] if isinstance(offsets, int) else offsets

    def count(self, token_id: int) -> int:
        """Returns how often the output has a token."""
        offsets = self._orders[0].get(token_id + TOKEN_OFFSET, _NOWHERE)
        return 1 if isinstance(offsets, int) else len(offsets)


def _add(order: dict[int, int | list[int]], key: int, offset: int | list[int]) -> None:
    offsets = order.setdefault(key, offset)
    if offsets is offset or not isinstance(offset, int):
        return
    if isinstance(offsets, int):
        order[key] = [offsets, offset]
    else:
        offsets.append(offset)
