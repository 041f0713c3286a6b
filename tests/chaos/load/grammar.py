"""Grammars that ask much of whoever follows them."""

from typing import Any

LARGE_BOUNDS: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 30, "maxLength": 50_000}},
    "required": ["text"],
    "additionalProperties": False,
}
"""A schema whose bounds no automaton of a sensible size counts."""
AMBIGUOUS = 'start: x\nx: x x | /[a-z]+/ | " " | "\\n"'
"""A text of n parts can be read in exponentially many ways."""
DEEP = 'start: x\nx: "(" x ")" | "[" x "]" | x "," x | /[a-z]*/'
"""Nothing bounds how deep it goes."""
_NUM_RULES = 700
# After 31 characters every rule may begin.
_RULES = [f"c{number}" for number in range(_NUM_RULES)]
FAILING = 'start: HEAD any\nHEAD: /[^"]{30}:/\nT: /[a-z]/\nany: ' + " | ".join(_RULES)
FAILING += "".join(
    f"\n{one}: T {following} T | T"
    for one, following in zip(_RULES, [*_RULES[1:], *_RULES[:1]], strict=True)
)
"""It is valid, and after some tokens more than the limits of a matcher allow."""
