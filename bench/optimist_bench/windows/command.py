"""`optimist bench windows`: what proposers cost on the way from one pass to the next."""

from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from optimist_bench.harness.case_text import functions
from optimist_bench.harness.command import run_command
from optimist_bench.harness.pair import Pair, load_pairs, load_tokenizer, make_pair
from optimist_bench.windows.report import describe
from optimist_bench.windows.run import run_virtually
from optimist_bench.windows.settings import WindowsSettings

NUM_FUNCTIONS = 24
"""Of each generated text."""
NUM_TEXTS = 32


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if a text came out wrong."""
    return run_command(WindowsSettings, arguments, measure, describe)


def _generate_pairs(tokenizer: Tokenizer) -> Iterator[Pair]:
    """Generates texts with a function renamed, one left out, one moved and one put in."""
    for number in range(NUM_TEXTS):
        before = functions(NUM_FUNCTIONS, number)
        name = before[number % NUM_FUNCTIONS].split("(")[0].removeprefix("def ")
        after = [text.replace(name, f"{name}_again") for text in before]
        del after[(5 * number + 3) % len(after)]
        after.insert(number % len(after), after.pop())
        after.insert((7 * number) % len(after), functions(1, NUM_TEXTS + number)[0])
        yield make_pair(tokenizer, "\n\n".join(before), "\n\n".join(after))


def measure(settings: WindowsSettings) -> dict[str, Any]:
    """Runs all requests and returns the report."""
    tokenizer = load_tokenizer(settings.tokenizer)
    if settings.pairs:
        pairs = load_pairs(settings.pairs, tokenizer, 0)
    else:
        pairs = list(_generate_pairs(tokenizer))
    return run_virtually(settings, pairs, tokenizer)
