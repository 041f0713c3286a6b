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
_RULES = [f"c{number}" for number in range(350)]
# After 31 characters every rule may begin, with any of its letters.
FAILING = 'start: HEAD any\nHEAD: /[^"]{30}:/\nT: /[a-z]/\nany: ' + " | ".join(_RULES)
FAILING += "".join(f"\n{rule}: {'T? ' * 30}T" for rule in _RULES)
"""It is valid, and after some tokens more than the limits of a matcher allow."""
COSTLY = "start: x\nx: x x | x x x | x x x x | /[a-z]/"
"""Each character makes it more ambiguous, until a limit is met."""
