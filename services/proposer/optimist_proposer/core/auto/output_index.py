"""Where the output itself says what was said last."""

from optimist_proposer.core.auto.context_index import TOKEN_BITS


class OutputIndex:
    """Places by the one, two or three tokens before them, oldest first; grows with the output."""

    def __init__(self, start: int) -> None:
        """Indexes what is appended to a text from place `start` on."""
        self._start = start
        self._orders: tuple[dict[int, list[int]], ...] = ({}, {}, {})

    def add(self, text: list[int]) -> None:
        """Takes the last token of the text, which was just appended."""
        place = len(text)
        key = 0
        for distance, places in enumerate(self._orders, 1):
            if place - distance < self._start:
                return
            key = (key << TOKEN_BITS) | (text[-distance] + 2)
            known = places.get(key)
            if known is None:
                places[key] = [place]
            else:
                known.append(place)

    def find(self, order: int, key: int) -> list[int]:
        """Returns the places behind a context; the last one may be the end of the text."""
        return self._orders[order - 1].get(key, [])
