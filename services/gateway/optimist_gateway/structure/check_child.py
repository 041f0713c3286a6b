"""Compiles grammars for its parent, in a process that a grammar may end.

Some grammars of a few hundred bytes take minutes or gigabytes to compile whatever limits the
compiler is given, so this is not done where requests are served.
"""

import json
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

from llguidance import LLTokenizer

from optimist_common.errors import one_line
from optimist_common.grammar import MAX_LEXER_STATES, find_problem, make_matcher, matching_tokenizer
from optimist_common.model_files.tokenizer import load_tokenizer
from optimist_common.sampling import MAX_GRAMMAR_BYTES
from optimist_gateway.structure.json_rule import loosened

MAX_COMPILE_SECONDS = 0.5
"""Processor time; the worker compiles a new grammar again, between the steps of all requests."""
MAX_SECONDS = 2 * MAX_COMPILE_SECONDS
"""Processor time of an answer, after which the process ends."""
MAX_MEMORY_BYTES = 2**30


def load_checker(argument: str) -> Callable[[Any], str]:
    """Returns what checks a grammar, a text: no text if it is good, else why it is not.

    Of a schema, an object, it returns what is left of it that compiles, as JSON. The argument is
    JSON with `model`, `tokenizer` (path of its tokenizer.json, empty if its tokenizer is in another
    form), `vocab_size` and `eos_token_ids`.
    """
    description = json.loads(argument)
    sizes = description["vocab_size"], description["eos_token_ids"]
    try:
        tokenizer = matching_tokenizer(_source(**description), *sizes)
    except ValueError as error:
        reason = f"this model cannot follow grammars: {one_line(error)}"
        return lambda question: reason if isinstance(question, str) else "{}"
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # What is loaded with the first grammar is not counted as its time.
    check_grammar("start: /a/", tokenizer)

    def is_good(rule: str) -> bool:
        return not check_grammar(f"start: {rule}\n", tokenizer)

    def answer(question: Any) -> str:
        # By SIGPROF: no handler in Python would be called while a grammar is compiled.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        try:
            if isinstance(question, str):
                return check_grammar(question, tokenizer)
            return json.dumps(loosened(question, is_good))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return answer


def _source(model: str, tokenizer: str, **_others: Any) -> str:
    """Returns the text of a tokenizer.json."""
    if not tokenizer:
        return str(load_tokenizer(model, "--model").backend_tokenizer.to_str())
    with open(tokenizer, encoding="utf-8") as file:  # noqa: PTH123 (no pathlib)
        return file.read()


def check_grammar(grammar: str, tokenizer: LLTokenizer) -> str:
    """Returns what is wrong with a grammar in llguidance's Lark dialect; no text if it is good."""
    size = len(grammar.encode())
    if size > MAX_GRAMMAR_BYTES:
        return f"makes a grammar of {size} bytes; {MAX_GRAMMAR_BYTES} are the most"
    started = time.process_time()
    problem = find_problem(make_matcher(tokenizer, grammar, MAX_LEXER_STATES))
    if problem:
        return problem
    if time.process_time() - started > MAX_COMPILE_SECONDS:
        return "is too complex: it takes too long to compile"
    return ""
