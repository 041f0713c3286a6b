"""Where the output itself says what was said last."""

from optimist_proposer.core.auto.context_index import TOKEN_BITS

_OFFSET = 2


class OutputIndex:
    """Places by the one, two or three tokens before them, oldest first; grows with the output."""

    def __init__(self, start: int) -> None:
        """Indexes what is appended to a text from place `start` on."""
        self._start = start
        self._orders: tuple[dict[int, list[int]], ...] = ({}, {}, {})

    def extend(self, text: list[int], first: int) -> None:
        """Takes the tokens of the text from place `first` on, which were just appended."""
        ones, twos, threes = self._orders
        start = self._start
        last = text[first - 1] + _OFFSET if first > start else 0
        before = text[first - 2] + _OFFSET if first - 1 > start else 0
        for place, token_id in enumerate(text[first:], first + 1):
            key = token_id + _OFFSET
            places = ones.get(key)
            if places is None:
                ones[key] = [place]
            else:
                places.append(place)
            two = (key << TOKEN_BITS) | last
            if last:
                places = twos.get(two)
                if places is None:
                    twos[two] = [place]
                else:
                    places.append(place)
                if before:
                    three = (two << TOKEN_BITS) | before
                    places = threes.get(three)
                    if places is None:
                        threes[three] = [place]
                    else:
                        places.append(place)
            before, last = last, key

    def find(self, order: int, key: int) -> list[int]:
        """Returns the places behind a context; the last one may be the end of the text."""
        return self._orders[order - 1].get(key, [])

    def count(self, token_id: int) -> int:
        """Returns how often the output has a token."""
        return len(self._orders[0].get(token_id + _OFFSET, ()))
