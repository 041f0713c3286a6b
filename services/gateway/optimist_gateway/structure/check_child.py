"""Compiles grammars for its parent, in a process that a grammar may end.

Some grammars of a few hundred bytes take minutes or gigabytes to compile whatever limits the
compiler is given, so this is not done where requests are served.
"""

import json
import re
import resource
import time
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from optimist_common.sampling import MAX_GRAMMAR_BYTES, PARSER_LIMITS

MAX_COMPILE_SECONDS = 0.25
"""Processor time; the worker compiles the grammar again, between the steps of all requests."""
MAX_MEMORY_BYTES = 2**30
_MAX_REASON = 300
_LIMITS = LLParserLimits(**PARSER_LIMITS, verbose_errors=False)


def load_checker(argument: str) -> Callable[[Any], str]:
    """Returns what checks a grammar: no text if it is good, else why it is not.

    The argument is JSON with `tokenizer` (path of a file), `vocab_size` and `eos_token_ids`.
    """
    description = json.loads(argument)
    with open(description["tokenizer"], encoding="utf-8") as file:  # noqa: PTH123 (no pathlib)
        source = file.read()
    try:
        tokenizer = LLTokenizer(
            source, n_vocab=description["vocab_size"], eos_token=description["eos_token_ids"]
        )
    except ValueError as error:
        reason = f"this model's tokenizer cannot follow grammars: {_line(str(error))}"
        return lambda _grammar: reason
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # What is loaded with the first grammar is not counted as its time.
    check_grammar("start: /a/", tokenizer)
    return lambda grammar: check_grammar(grammar, tokenizer)


def check_grammar(grammar: str, tokenizer: LLTokenizer) -> str:
    """Returns what is wrong with a grammar in llguidance's Lark dialect; no text if it is good."""
    size = len(grammar.encode())
    if size > MAX_GRAMMAR_BYTES:
        return f"makes a grammar of {size} bytes; {MAX_GRAMMAR_BYTES} are the most"
    started = time.process_time()
    source = LLMatcher.grammar_from_lark(grammar)
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        # What is only found when the parser first runs is found here.
        matcher.compute_bitmask()
    if matcher.is_error():
        return _reason(matcher.get_error())
    if time.process_time() - started > MAX_COMPILE_SECONDS:
        return "is too complex: it takes too long to compile"
    return ""


def _reason(error: str) -> str:
    """Returns an error without the source that it repeats and positions in it."""
    text = re.split(r"<state>|<backtrace>|<non-verbose|\n\s*\d+ \|", error)[0]
    text = re.sub(r"^(at )?\d+\(\d+\): ", "", text.strip())
    text = text.removeprefix("failed to compile JSON schema: ")
    return "matches no text" if text in ("", "NoExtensionBias") else _line(text)


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_REASON]
