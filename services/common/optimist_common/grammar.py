"""Grammars as the gateway checks them and the worker follows them: limits, and why one fails."""

import re
from typing import Final, TypedDict

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_MAX_REASON = 300


class _Limits(TypedDict):
    """Arguments of llguidance's limits, but for the lexer's states."""

    initial_lexer_fuel: int
    step_lexer_fuel: int
    step_max_items: int
    max_items_in_row: int
    max_grammar_size: int


_LIMITS: Final[_Limits] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 10_000,
    "max_items_in_row": 10_000,
    "max_grammar_size": 500_000,
}
"""For most grammars they bound compiling and each mask to some 20 ms, for the most ambiguous ones
each mask to some 100 ms."""

MAX_LEXER_STATES: Final = 10_000
"""Of a grammar that has followed nothing yet; a matcher of them takes some 20 MB at most."""


def load_tokenizer(source: str, vocab_size: int, eos_token_ids: list[int]) -> LLTokenizer:
    """Reads a tokenizer.

    Args:
        source: Text of its tokenizer.json.
        vocab_size: Of the model's logits. A tokenizer may have more tokens; no model chooses them.
        eos_token_ids: Allowed where a grammar may end.

    Raises:
        ValueError: It cannot be used.
    """
    try:
        return LLTokenizer(source, n_vocab=vocab_size, eos_token=eos_token_ids)
    except ValueError as error:
        if "vocab size too small" not in str(error):
            raise
        return LLTokenizer(source, eos_token=eos_token_ids)


def make_matcher(tokenizer: LLTokenizer, grammar: str, max_lexer_states: int) -> LLMatcher:
    """Returns a matcher that has followed nothing yet, in error if the grammar is wrong.

    Args:
        tokenizer: See `load_tokenizer`.
        grammar: In llguidance's dialect of Lark.
        max_lexer_states: Most states that its lexer may come to have.

    Raises:
        UnicodeEncodeError: The grammar is no Unicode.
    """
    source = LLMatcher.grammar_from_lark(grammar)
    limits = LLParserLimits(**_LIMITS, max_lexer_states=max_lexer_states, verbose_errors=False)
    return LLMatcher(tokenizer, source, log_level=0, limits=limits)


def find_problem(matcher: LLMatcher) -> str:
    """Returns why a new matcher cannot be used; no text if it can."""
    # What is only found when the parser first runs is found here.
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if not matcher.is_error() and not matcher.is_stopped():
        # Drafts are taken back, which llguidance cannot do where lexemes count tokens or hide some.
        first = int(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").argmax())
        if matcher.consume_token(first) and matcher.rollback(1):
            return ""
    return find_reason(matcher) if matcher.is_error() else ""


def find_reason(matcher: LLMatcher) -> str:
    """Returns a matcher's error in a line, without the grammar and positions in it."""
    text = re.split(r"<state>|<backtrace>|<non-verbose|\n\s*\d+ \|", matcher.get_error())[0]
    text = re.sub(r"^(at )?\d+\(\d+\): ", "", text.strip())
    text = text.removeprefix("failed to compile JSON schema: ")
    if text in ("", "NoExtensionBias"):
        return "matches no text" if text else "the grammar has ended"
    return " ".join(text.split())[:_MAX_REASON]
