"""`optimist bench windows`: what proposers cost on the way from one pass to the next."""

from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from optimist_bench.harness.case_text import functions
from optimist_bench.harness.command import format_table, run_command
from optimist_bench.harness.pair import Pair, load_pairs, load_tokenizer, make_pair
from optimist_bench.windows.run import run_virtually
from optimist_bench.windows.settings import WindowsSettings

NUM_FUNCTIONS = 24
"""Of each generated text."""
NUM_TEXTS = 32


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if a text came out wrong."""
    return run_command(WindowsSettings, arguments, measure, describe)


def _generate_pairs(tokenizer: Tokenizer, count: int) -> Iterator[Pair]:
    """Generates texts with a function renamed, one left out, one moved and one put in."""
    for number in range(count):
        before = functions(NUM_FUNCTIONS, number)
        name = before[number % NUM_FUNCTIONS].split("(")[0].removeprefix("def ")
        after = [text.replace(name, f"{name}_again") for text in before]
        del after[(5 * number + 3) % len(after)]
        after.insert(number % len(after), after.pop())
        after.insert((7 * number) % len(after), functions(1, NUM_TEXTS + number)[0])
        yield make_pair(tokenizer, "\n\n".join(before), "\n\n".join(after), ratio=0.0)


def measure(settings: WindowsSettings) -> dict[str, Any]:
    """Runs all requests and returns the report."""
    tokenizer = load_tokenizer(settings.tokenizer)
    if settings.pairs:
        pairs = load_pairs(settings.pairs, tokenizer, 0)
    else:
        pairs = list(_generate_pairs(tokenizer, min(NUM_TEXTS, settings.requests)))
    return run_virtually(settings, pairs, tokenizer)


def describe(report: dict[str, Any]) -> str:
    """Returns the report as a table."""
    names = (
        *("tokens_per_second", "tokens_per_pass", "steps", "steps_waited_share"),
        *("steps_idle_share", "waits_in_vain_share", "proposer_us_per_window"),
    )
    waits = report["wait_ms"]
    return format_table(
        (*names, "p50 ms", "p99 ms", "right"),
        [(*(report[name] for name in names), waits["p50"], waits["p99"], report["all_right"])],
    )
