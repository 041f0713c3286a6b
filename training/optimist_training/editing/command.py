"""`optimist train edit`: an adapter that teaches a model to edit files."""

import argparse
import json
import random
import sys
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from optimist_common.errors import SetupError
from optimist_training.data.options import add_run_options, read_json_lines, require_positive
from optimist_training.editing.packing import pack, packs
from optimist_training.editing.pairs import Pair
from optimist_training.loop import Schedule, run

if TYPE_CHECKING:
    from optimist_training.editing.adapter import Adapter

_SETTINGS = ("model", "data", "rank", "batch_tokens", "max_length", "learning_rate", "seed")
"""What a resumed run must have as the run before; it may be longer."""


def add_edit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_run_options(parser, 8e-4)
    parser.set_defaults(steps=2000, max_length=1280)
    parser.add_argument("--data", type=Path, required=True, help="of optimist train pairs")
    parser.add_argument("--unseen", type=Path, help="edits to measure on, of other repositories")
    parser.add_argument("--base-name", help="the model's name in the adapter (default: --model)")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--whole-share", type=float, default=0.2, help="of answers, 0 to 1")


def train_edit(options: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        SetupError: An option, the model or the data cannot be used.
        InterruptedRunError: See `run`.
    """
    # PEFT takes seconds to import, which no other kind of training has to wait for.
    from optimist_training.editing.adapter import Adapter, pack_batches

    require_positive(options, "rank")
    if not 0 <= options.whole_share <= 1:
        raise SetupError("--whole-share: must be from 0 to 1")
    adapter = Adapter(options.model, options.rank, options.seed, options.device)
    schedule = Schedule(
        options.steps,
        options.batch_tokens,
        options.learning_rate,
        warmup_steps=10,
        constant_share=0.7,
        snapshot_steps=20,
        bf16=options.bf16,
    )
    found = packs(
        _groups(options.data, "--data"),
        adapter.tokenizer,
        options.max_length,
        options.whole_share,
        options.seed,
    )
    settings: dict[str, object] = {name: str(getattr(options, name)) for name in _SETTINGS}
    run(
        adapter.parameters(),
        adapter.loss,
        pack_batches(found, options.batch_tokens),
        schedule,
        options.out / "training",
        settings,
        resume=options.resume or not options.steps,
    )
    if options.steps:
        adapter.save(options.out, options.base_name or options.model)
    if options.unseen is not None:
        print(json.dumps({"unseen": _measure(adapter, options)}, indent=2))


def _groups(file: Path, flag: str) -> list[list[Pair]]:
    """Returns the edits of a file, those of one `before` together."""
    pairs = []
    for where, row in read_json_lines(file, flag):
        try:
            pair = Pair(**row)
        except TypeError as error:
            raise SetupError(f"{flag}: {where} is no edit: {error}") from None
        if not all(
            isinstance(text, str) for text in (pair.path, pair.before, pair.after, pair.task)
        ):
            raise SetupError(f"{flag}: {where} is no edit: its texts must be texts")
        pairs.append(pair)
    if not pairs:
        raise SetupError(f"{flag}: {file} has no edits")
    return [list(group) for _, group in groupby(pairs, key=lambda pair: (pair.path, pair.before))]


def _measure(adapter: "Adapter", options: argparse.Namespace) -> dict[str, Any]:
    """Returns the number of unseen edits and the share of exact answers, by kind."""
    of_kind: dict[str, list[bool]] = {}
    rng = random.Random(options.seed)
    for group in _groups(options.unseen, "--unseen"):
        for pair in group:
            one = pack([pair], adapter.tokenizer, sys.maxsize, 1.0, rng)
            of_kind.setdefault(pair.kind, []).extend(adapter.answers_exactly(one))
    return {
        kind: {"edits": len(exact), "exact": round(fmean(exact), 3)}
        for kind, exact in sorted(of_kind.items())
    }
