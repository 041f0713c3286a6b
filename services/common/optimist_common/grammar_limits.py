"""How large and how complex a grammar may be: for the gateway, which tries it, and the worker."""

from typing import Final, TypedDict

MAX_GRAMMAR_BYTES: Final = 64 * 1024


class ParserLimits(TypedDict):
    """Arguments of llguidance's limits."""

    initial_lexer_fuel: int
    step_lexer_fuel: int
    step_max_items: int
    max_items_in_row: int
    max_lexer_states: int
    max_grammar_size: int


PARSER_LIMITS: Final[ParserLimits] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 500_000,
}
"""For most grammars they bound compiling and each mask to some 20 ms, a matcher to some 20 MB."""
