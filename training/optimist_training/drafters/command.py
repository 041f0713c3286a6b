"""`optimist train`: trains drafters, the proposer, and adapters that teach a model to edit."""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from optimist_training.circuit.copying import copying_model
from optimist_training.data.examples import BUILTIN, Batch, Data, Example, batches
from optimist_training.data.options import add_run_options, require_positive, require_run_options
from optimist_training.drafters.acceptance import measure
from optimist_training.drafters.draft_training import DraftTrainee
from optimist_training.drafters.eagle_training import EagleTrainee, new_head
from optimist_training.drafters.medusa_training import MedusaTrainee, known_heads, new_heads
from optimist_training.drafters.target import Target, Trainee
from optimist_training.editing.command import add_edit_options, train_edit
from optimist_training.editing.pairs import add_pairs_options, write_pairs
from optimist_training.loop import InterruptedRunError, Schedule, run
from optimist_training.proposer.command import add_proposer_options, train_proposer
from optimist_training.proposer.continuations import add_continuations_options, train_continuations
from optimist_worker.drafters.heads.eagle import load_eagle

_SETTINGS = (
    "kind",
    "model",
    "data",
    "steps",
    "batch_tokens",
    "learning_rate",
    "bf16",
    "seed",
    "answers",
)
"""What a resumed run must have as the run before."""

_STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    result = argparse.ArgumentParser(prog="optimist train", description=__doc__)
    kinds = result.add_subparsers(dest="kind", required=True)
    for kind, rate in (("medusa", 1e-3), ("eagle", 5e-4), ("draft", 1e-3)):
        one = kinds.add_parser(kind, help=_HELP[kind])
        add_run_options(one, rate)
        one.add_argument("--data", default=BUILTIN, help=f"JSONL file, or {BUILTIN} (default)")
        one.add_argument("--start", help="a drafter of this kind to go on from")
        one.add_argument(
            "--answers",
            choices=("given", "generated"),
            default="given",
            help="the data's completions (default), or greedy ones that the target writes",
        )
        one.add_argument("--eval-examples", type=int, default=140, help="unseen, to measure on")
        one.add_argument("--stored", choices=tuple(_STORED), default="float16")
        _kind_options(one, kind)
    add_proposer_options(
        kinds.add_parser("proposer", help="weights of the proposer's default algorithm")
    )
    add_continuations_options(
        kinds.add_parser("continuations", help="counts of what commonly follows what, for it")
    )
    add_pairs_options(kinds.add_parser("pairs", help="edits from git repositories, for edit"))
    add_edit_options(kinds.add_parser("edit", help="an adapter that teaches a model to edit"))
    return result


_HELP = {
    "medusa": "heads on the last hidden state, each a token further ahead",
    "eagle": "a layer that goes on from the target's features",
    "draft": "a small model of its own",
}


def _kind_options(one: argparse.ArgumentParser, kind: str) -> None:
    if kind != "draft":
        one.add_argument(
            "--draft-vocab",
            type=int,
            help="draft only this many tokens, the commonest of the completions (default: all)",
        )
    if kind == "medusa":
        one.add_argument("--heads", type=int, default=4)
        one.add_argument("--layers", type=int, default=1, help="residual layers per head")
        one.add_argument("--share-output", action="store_true", help="one output matrix for all")
        one.add_argument(
            "--blank-output",
            action="store_true",
            help="start from outputs of zero, not the target's",
        )
    elif kind == "eagle":
        one.add_argument("--layers", type=int, default=1)
        one.add_argument("--levels", type=int, default=4, help="length of the chains trained on")
    else:
        one.add_argument(
            "--initial",
            choices=("copy", "random"),
            default="copy",
            help="two layers that copy what followed the same tokens (default), or random weights",
        )
        one.add_argument("--layers", type=int, default=2, help="of random weights")
        one.add_argument("--width", type=int, default=128, help="of random weights")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code.

    Raises:
        SetupError: An option, the model or the data cannot be used.
    """
    options = parser().parse_args(arguments)
    if options.kind == "proposer":
        train_proposer(options)
        return 0
    if options.kind == "continuations":
        train_continuations(options)
        return 0
    if options.kind == "pairs":
        write_pairs(options)
        return 0
    require_run_options(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        (train_edit if options.kind == "edit" else _train_drafter)(options)
    except InterruptedRunError as stopped:
        print(f"optimist train: {stopped}", file=sys.stderr)
        return 130
    return 0


def _train_drafter(options: argparse.Namespace) -> None:
    require_positive(options, "eval_examples")
    if getattr(options, "draft_vocab", None) is not None:
        require_positive(options, "draft_vocab")
    torch.manual_seed(options.seed)
    target = Target(options.model, device=options.device)
    longest = min(options.max_length, target.model.max_position_embeddings)
    data = Data(options.data, options.model, options.seed, longest)
    trainee = _trainee(options, target, data)
    _train(options, target, data, trainee)
    trainee.save(options.out)
    unseen = _answered(options, target, iter(data.unseen(options.eval_examples)))
    results = measure(trainee, target, unseen)
    print(json.dumps({"kind": options.kind, "unseen": [one.report() for one in results]}, indent=2))


def _train(options: argparse.Namespace, target: Target, data: Data, trainee: Trainee) -> None:
    if options.steps == 0:
        return
    examples = _answered(options, target, data.training())
    schedule = Schedule(
        options.steps, options.batch_tokens, options.learning_rate, bf16=options.bf16
    )
    settings = {name: getattr(options, name) for name in _SETTINGS}
    found = batches(examples, options.batch_tokens)
    state = options.out / "training"

    def loss_of(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return trainee.loss(target.teach(batch, trainee.layers))

    run(trainee.parameters(), loss_of, found, schedule, state, settings, resume=options.resume)


def _answered(
    options: argparse.Namespace, target: Target, examples: Iterator[Example]
) -> Iterator[Example]:
    if options.answers == "given":
        yield from examples
        return
    while some := list(islice(examples, 8)):
        yield from target.answer(some, options.max_length)


def _trainee(options: argparse.Namespace, target: Target, data: Data) -> Trainee:
    stored = _STORED[options.stored]
    if options.kind == "medusa":
        if options.start is not None:
            return MedusaTrainee(target, known_heads(target, options.start), stored)
        heads = new_heads(
            target,
            options.heads,
            options.layers,
            _draft_vocab(options, data),
            share=options.share_output,
            blank=options.blank_output,
        )
        return MedusaTrainee(target, heads, stored)
    if options.kind == "eagle":
        head = (
            new_head(target, options.layers, options.seed, _draft_vocab(options, data))
            if options.start is None
            else load_eagle(options.start, target.model)
        )
        return EagleTrainee(head, options.levels, stored)
    model = _draft_model(options, target, data).to(options.device)
    return DraftTrainee(model, options.model, stored)


def _draft_vocab(options: argparse.Namespace, data: Data) -> list[int] | None:
    return None if options.draft_vocab is None else data.commonest(options.draft_vocab)


def _draft_model(options: argparse.Namespace, target: Target, data: Data) -> Any:
    if options.start is not None:
        loader: Any = AutoModelForCausalLM
        return loader.from_pretrained(options.start, dtype=torch.float32, use_safetensors=True)
    eos = target.model.eos_token_ids[0] if target.model.eos_token_ids else None
    positions = target.config.max_position_embeddings
    if options.initial == "copy":
        vocab_size = target.model.vocab_size
        return copying_model(vocab_size, data.answer_id(), eos, positions, options.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=target.model.vocab_size,
            hidden_size=options.width,
            intermediate_size=2 * options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=max(options.width // 64, 1),
            max_position_embeddings=positions,
            bos_token_id=None,
            eos_token_id=eos,
            pad_token_id=eos,
        )
    )
