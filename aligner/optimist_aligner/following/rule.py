"""What the output says in place of what was predicted: renamed names, other indentation, quotes.

What is inserted or left out is a rule for the token after it.
"""

from dataclasses import dataclass
from typing import Final

MOST_TOKENS: Final = 6
"""Of what is replaced, and of what it is replaced by."""
MOST_RULES_PER_TOKEN: Final = 3


@dataclass(slots=True)
class Rule:
    """A substitution that was seen."""

    replaced: list[int]
    """What the prediction says."""
    offset: int
    """Where the output said something else instead."""
    length: int
    """Of that, in tokens."""
    is_pure: bool
    """Whether something is only inserted or left out."""
    num_sightings: int = 1
    num_passed: int = 0
    """Times the output said what was predicted."""

    @property
    def sightings(self) -> int:
        """The bucket of how often it held, and how often not."""
        seen, passed = min(3, self.num_sightings - 1), min(3, self.num_passed)
        return (self.is_pure * 4 + seen) * 4 + passed


class Rules:
    """The substitutions of one output, by the first token that they replace."""

    def __init__(self) -> None:
        self.by_token: dict[int, list[Rule]] = {}
        """None of the lists is empty."""

    def find(self, text: list[int], offset: int) -> list[Rule]:
        """Returns the rules for what stands at an offset."""
        rules = self.by_token.get(text[offset], ())
        return [rule for rule in rules if _stands(text, offset, rule.replaced)]

    def learn(self, text: list[int], start: int, end: int, offset: int, offset_end: int) -> None:
        """Notes that `text[offset:offset_end]` came in place of `text[start:end]`.

        After both comes the same token.
        """
        is_pure = start == end or offset == offset_end
        if is_pure:
            end, offset_end = end + 1, offset_end + 1
        length = offset_end - offset
        if not (1 <= end - start <= MOST_TOKENS and 1 <= length <= MOST_TOKENS):
            return
        replaced, said = text[start:end], text[offset:offset_end]
        if replaced == said or min(replaced) < 0:
            return
        rules = self.by_token.setdefault(replaced[0], [])
        for rule in rules:
            same = rule.replaced == replaced and rule.length == length
            if same and _stands(text, rule.offset, said):
                rule.num_sightings += 1
                return
        rules.append(Rule(replaced, offset, length, is_pure))
        del rules[:-MOST_RULES_PER_TOKEN]


def _stands(text: list[int], offset: int, tokens: list[int]) -> bool:
    return text[offset : offset + len(tokens)] == tokens
