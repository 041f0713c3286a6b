"""Grammars as the gateway checks them and the worker follows them: limits, and why one fails."""

import re
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from optimist_common.vocabulary import Vocabulary

_MAX_REASON = 300


MAX_LEXER_STATES: Final = 10_000
"""Of a grammar that has followed nothing yet; a matcher of them takes some 20 MB at most."""


def matching_tokenizer(source: str, vocab_size: int, eos_token_ids: list[int]) -> LLTokenizer:
    """Reads a tokenizer.

    Args:
        source: Text of its tokenizer.json.
        vocab_size: Of the model's logits. A tokenizer may have more tokens; no model chooses them.
        eos_token_ids: Allowed where a grammar may end.

    Raises:
        ValueError: It cannot be used, or nothing ends a text.
    """
    if not eos_token_ids:
        raise ValueError("the model names no end token")
    try:
        return LLTokenizer(source, n_vocab=vocab_size, eos_token=eos_token_ids)
    except ValueError:
        # It has more tokens, or a decoder that llguidance does not know.
        tokens = _Tokens(source, vocab_size, eos_token_ids[0])
        return LLTokenizer(TokenizerWrapper(tokens), n_vocab=vocab_size, eos_token=eos_token_ids)


class _Tokens:
    """The tokens of a model in the form that llguidance takes instead of a tokenizer.json."""

    bos_token_id = None

    def __init__(self, source: str, vocab_size: int, eos_token_id: int) -> None:
        self._backend = Tokenizer.from_str(source)
        vocabulary = Vocabulary(self._backend)
        if not vocabulary.joins():
            raise ValueError("the text of the tokenizer's tokens depends on those around them")
        self.eos_token_id = eos_token_id
        self.tokens = [vocabulary[token_id][1] for token_id in range(vocab_size)]
        self.special_token_ids = [
            token_id
            for token_id, token in self._backend.get_added_tokens_decoder().items()
            if token_id < vocab_size and (token.special or re.fullmatch("<.*>", token.content))
        ]
        special = {*self.special_token_ids}
        self._ids = {
            token: token_id for token_id, token in enumerate(self.tokens) if token_id not in special
        }
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, data: bytes) -> list[int]:
        """Returns tokens with just the bytes of a text: where only it may follow, only they may."""
        token_ids = self._backend.encode(data.decode(), add_special_tokens=False).ids
        size = len(self.tokens)
        if b"".join(self.tokens[one] for one in token_ids if one < size) == data:
            return [one for one in token_ids if one < size]
        # It would write a space before the text, or needs tokens that the model lacks.
        token_ids = []
        start = 0
        while start < len(data):
            ends = range(min(start + self._longest, len(data)), start, -1)
            end = next((one for one in ends if data[start:one] in self._ids), None)
            if end is None:
                return []
            token_ids.append(self._ids[data[start:end]])
            start = end
        return token_ids


def make_matcher(tokenizer: LLTokenizer, grammar: str, max_lexer_states: int) -> LLMatcher:
    """Returns a matcher that has followed nothing yet, in error if the grammar is wrong.

    The grammar is in llguidance's dialect of Lark; raises UnicodeEncodeError if it is no Unicode.
    """
    source = LLMatcher.grammar_from_lark(grammar)
    # Compiling and each mask take up to some 20 ms, masks of the most ambiguous grammars 100 ms.
    limits = LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=10_000,
        max_items_in_row=10_000,
        max_grammar_size=500_000,
        max_lexer_states=max_lexer_states,
        verbose_errors=False,
    )
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
