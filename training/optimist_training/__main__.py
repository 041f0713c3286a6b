"""`python -m optimist_training`: makes the models that the repository brings, and measures them."""

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from optimist_common.errors import SetupError
from optimist_training.circuit.initial import initial_model
from optimist_training.data.edits import edits, unseen_edits
from optimist_training.data.tokenizer import train_tokenizer, write_tokenizer
from optimist_training.drafters.eagle_circuit import circuit_head
from optimist_training.drafters.heads import save_eagle
from optimist_training.drafters.target import Target
from optimist_training.editing.adapter import merge
from optimist_training.evaluate import answer_edit, report
from optimist_training.train import Recipe, train, write_model


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "tokenizer":
            write_tokenizer(train_tokenizer(options.seed), options.out)
        elif options.command == "train":
            _train(options)
        elif options.command == "eagle":
            target = Target(str(options.model))
            save_eagle(circuit_head(target), options.out, torch.float16)
        elif options.command == "merge":
            merge(options.model, options.adapter, options.out)
        else:
            _evaluate(options)
    except (OSError, ValueError, SetupError) as error:
        print(f"optimist_training {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m optimist_training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tokenizer = commands.add_parser("tokenizer", help="train the tokenizer alone")
    tokenizer.add_argument("--seed", type=int, default=Recipe.seed)
    tokenizer.add_argument("--out", type=Path, required=True, help="directory to write")
    training = commands.add_parser("train", help="make the whole model")
    training.add_argument("--seed", type=int, default=Recipe.seed)
    training.add_argument("--steps", type=int, default=Recipe.num_steps, help="of the last stage")
    training.add_argument("--out", type=Path, required=True, help="directory to write")
    eagle = commands.add_parser("eagle", help="write the EAGLE head of the bundled model")
    eagle.add_argument("--model", type=Path, default=Path("models/tiny-edit"))
    eagle.add_argument("--out", type=Path, required=True, help="directory to write")
    merging = commands.add_parser("merge", help="write a model with an adapter in its weights")
    merging.add_argument("--model", required=True, help="directory of the model")
    merging.add_argument("--adapter", type=Path, required=True, help="directory of the adapter")
    merging.add_argument("--out", type=Path, required=True, help="directory to write")
    evaluation = commands.add_parser("evaluate", help="print the exact-match rates as JSON")
    evaluation.add_argument("--model", type=Path, default=Path("models/tiny-edit"))
    evaluation.add_argument("--edits", type=int, default=350)
    evaluation.add_argument("--seed", type=int, default=0)
    evaluation.add_argument("--split", choices=("train", "unseen"), default="unseen")
    evaluation.add_argument("--wrong", action="store_true", help="list the wrong answers too")
    return parser


def _train(options: argparse.Namespace) -> None:
    recipe = Recipe(seed=options.seed, num_steps=options.steps)
    torch.manual_seed(recipe.seed)
    tokenizer = train_tokenizer(recipe.seed)
    print("the tokenizer is trained", flush=True)
    model = initial_model(tokenizer, recipe.seed)
    print("the circuit is written", flush=True)
    num_tokens = train(model, tokenizer, recipe)
    write_model(model, tokenizer, options.out)
    print(f"trained on {num_tokens} tokens, wrote {options.out}")


def _evaluate(options: argparse.Namespace) -> None:
    tokenizer_file = options.model / "tokenizer.json"
    if not tokenizer_file.exists():
        raise FileNotFoundError(f"{tokenizer_file} does not exist")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    model = LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    if options.split == "unseen":
        chosen = unseen_edits(options.edits, options.seed)
    else:
        chosen = list(islice(edits("train", options.seed), options.edits))
    results = [answer_edit(model, tokenizer, edit) for edit in chosen]
    print(json.dumps(report(results), indent=2))
    for result in results:
        if options.wrong and not result.is_exact:
            position = f"token {result.num_right} of {result.num_tokens}, {result.wrong!r}"
            print(f"{result.edit.kind}: {result.edit.instruction} {position}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
