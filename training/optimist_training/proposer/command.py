"""`optimist train proposer`: fits the weights of the proposer's default algorithm to requests.

Rounds of simulating requests with the weights so far, at costs from nothing up, and of fitting new
weights to what was met there; in the end a correction that is chosen by what it brings.
"""

import argparse
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np

from optimist_aligner.model.common import (
    Continuations,
    load_continuations,
    read_continuations,
)
from optimist_aligner.model.layout import NUM_WEIGHTS
from optimist_aligner.model.weights import to_json
from optimist_bench.harness.pair import (
    SOURCES,
    Pair,
    load_pairs,
    load_tokenizer,
    load_vocabulary,
)
from optimist_common.errors import SetupError
from optimist_training.data.options import require_file_name, require_positive, write_out
from optimist_training.proposer.calibration import calibrate
from optimist_training.proposer.fit import Examples, fit, join
from optimist_training.proposer.passes import Round, collect

MIN_VALUES = (0.0, 0.09, 0.2)
"""Least values of nodes, as costs of 0, 1 and 3 % of a pass make them."""
MOST_TOKENS = 32768
"""Of each text; longer requests are left out."""
MOST_CALIBRATION_PAIRS = 120
_PAIRS_PER_TASK = 8

T = TypeVar("T")
U = TypeVar("U")


def add_proposer_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--pairs",
        type=Path,
        nargs="+",
        required=True,
        help="JSONL files with before and after, or prompt and answer",
    )
    parser.add_argument(
        "--source",
        choices=SOURCES,
        default="prediction",
        help="where before is: attached, or in the prompt",
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--continuations", type=Path, help="what is common, counted in other texts than the pairs"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--max-pairs", type=int, default=1000, help="chosen by --seed if more")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)


def train_proposer(options: argparse.Namespace) -> None:
    """Fits weights to `options.pairs` and writes them to `options.out` after each round.

    Raises:
        SetupError: An option or a file cannot be used.
    """
    require_positive(options, "rounds", "max_pairs", "processes")
    if options.seed < 0:
        raise SetupError("--seed: must not be negative")
    require_file_name(options.out)
    tokenizer = load_tokenizer(str(options.tokenizer))
    vocabulary = load_vocabulary(tokenizer)
    continuations = _load_continuations(options.continuations)
    pairs = [
        pair
        for path in options.pairs
        for pair in load_pairs(str(path), tokenizer, 0, options.source)
    ]
    pairs = _choose(pairs, options.max_pairs, options.seed)
    weights = np.zeros(NUM_WEIGHTS + 1)
    for number in range(options.rounds):
        # Without weights the values of nodes say nothing.
        min_values = MIN_VALUES if number else MIN_VALUES[:1]
        round_ = Round(vocabulary, continuations, weights[:NUM_WEIGHTS].tolist(), min_values)
        roots, steps = _collect(round_, pairs, options.processes)
        seed = options.seed + number
        root_loss = fit(weights, roots, is_step=False, seed=seed)
        step_loss = fit(weights, steps, is_step=True, seed=seed)
        print(f"round {number + 1}: first tokens {root_loss:.4f}, further ones {step_loss:.4f}")
        write_out(options.out, to_json(weights[:NUM_WEIGHTS].tolist()).encode())
    some = random.Random(options.seed).sample(pairs, min(len(pairs), MOST_CALIBRATION_PAIRS))
    run = partial(_map, processes=options.processes)
    corrected = calibrate(vocabulary, continuations, some, weights[:NUM_WEIGHTS].tolist(), run)
    write_out(options.out, to_json(corrected).encode())


def _load_continuations(path: Path | None) -> Continuations:
    if path is None:
        return load_continuations()
    try:
        return read_continuations(path.read_bytes())
    except (OSError, EOFError, KeyError, ValueError, TypeError) as error:
        raise SetupError(f"--continuations: cannot read {path}: {error}") from None


def _choose(pairs: Sequence[Pair], most: int, seed: int) -> list[Pair]:
    short = [
        pair
        for pair in pairs
        if pair.truth and max(len(pair.source), len(pair.truth)) <= MOST_TOKENS
    ]
    if not short:
        raise SetupError(f"--pairs: no request has texts of 1 to {MOST_TOKENS} tokens")
    if len(short) < len(pairs):
        print(
            f"{len(pairs) - len(short)} requests are left out: empty, or over {MOST_TOKENS} tokens"
        )
    return short if len(short) <= most else random.Random(seed).sample(short, most)


def _collect(round_: Round, pairs: Sequence[Pair], processes: int) -> tuple[Examples, Examples]:
    """Returns the examples of all requests in their order, however many processes there are."""
    parts = [
        pairs[first : first + _PAIRS_PER_TASK] for first in range(0, len(pairs), _PAIRS_PER_TASK)
    ]
    found = list(_map(partial(collect, round_), parts, processes))
    return join([roots for roots, _ in found]), join([steps for _, steps in found])


def _map(function: Callable[[T], U], arguments: Sequence[T], processes: int) -> Iterator[U]:
    # Ctrl-C is for this process, which then ends the others.
    with ProcessPoolExecutor(
        min(processes, len(arguments)),
        get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    ) as pool:
        try:
            yield from pool.map(function, arguments)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
