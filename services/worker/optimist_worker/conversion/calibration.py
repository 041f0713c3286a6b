"""Finds which layers of a model must not be quantised, from texts that the model is for.

    python -m optimist_worker.conversion.calibration --model DIRECTORY --texts FILE

FILE has one JSON object a line: `prompt` and `text`, what the model answers. Most models need no
such search. It is for those that compute something exact in a few of their layers.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from optimist_common.errors import SetupError, run_or_explain
from optimist_common.model_files.directory import check_model
from optimist_common.observing.logs import configure_logging
from optimist_worker.conversion.quantization import load_float32, predict
from optimist_worker.model.quantise import KEPT_FILE, quantise_module
from optimist_worker.model.rounding import Bits

logger = logging.getLogger(__name__)

_MOST_TEXTS = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """A text, and from where on the model has written it."""

    token_ids: list[int]
    start: int


def choose_kept(
    module: Any, bits: Bits, samples: Sequence[Sample], agreement: float
) -> tuple[list[str], float]:
    """Picks the fewest layers to keep, most sensitive first, so that the copy agrees.

    A layer's sensitivity is the divergence (Kullback-Leibler) of the model's distributions when
    this layer alone is quantised. The number kept is found by bisection.

    Args:
        module: A transformers model that runs by itself.
        bits: Of the quantised layers.
        samples: At least one.
        agreement: Share of positions where copy and model must have the same likeliest token.

    Returns:
        Names of the layers to keep, and the share reached.

    Raises:
        SetupError: There is no layer to quantise.
    """
    expected = [_predict(module, sample) for sample in samples]

    def copy_without(kept: Sequence[str]) -> Any:
        return quantise_module(module, bits, kept, torch.float32)

    share = _share_agreed(copy_without([]), samples, expected)
    if share >= agreement:
        return [], share
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    divergences = {}
    for name in names:
        others = [other for other in names if other != name]
        divergences[name] = _divergence(copy_without(others), samples, expected)
        logger.info("%s alone: divergence %.2e", name, divergences[name])
    order = sorted(names, key=lambda name: -divergences[name])
    too_few, enough = 0, len(names) - 1
    share = _share_agreed(copy_without(order[:enough]), samples, expected)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        reached = _share_agreed(copy_without(order[:middle]), samples, expected)
        logger.info("%d layers kept: %.4f agree", middle, reached)
        if reached >= agreement:
            enough, share = middle, reached
        else:
            too_few = middle
    return sorted(order[:enough], key=names.index), share


def _predict(module: Any, sample: Sample) -> torch.Tensor:
    return predict(module, sample.token_ids, sample.start)


def _share_agreed(
    copied: Any, samples: Sequence[Sample], expected: Sequence[torch.Tensor]
) -> float:
    same = [
        _predict(copied, sample).argmax(-1) == of_model.argmax(-1)
        for sample, of_model in zip(samples, expected, strict=True)
    ]
    return float(torch.cat(same).double().mean())


def _divergence(copied: Any, samples: Sequence[Sample], expected: Sequence[torch.Tensor]) -> float:
    sums = [
        functional.kl_div(_predict(copied, sample), of_model, log_target=True, reduction="sum")
        for sample, of_model in zip(samples, expected, strict=True)
    ]
    return float(sum(sums)) / sum(len(of_model) for of_model in expected)


def read_samples(path: Path, tokenizer_path: Path) -> list[Sample]:
    """Reads the first of a file's texts.

    Raises:
        SetupError: A file cannot be read or a line is not as it should be.
    """
    if not tokenizer_path.is_file():
        raise SetupError(f"--model: {tokenizer_path} is missing; the texts need a tokenizer")
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    samples = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines()[:_MOST_TEXTS]:
            entry = json.loads(line)
            prompt = tokenizer.encode(entry["prompt"]).ids
            text = tokenizer.encode(entry["text"], add_special_tokens=False).ids
            if prompt and text:
                samples.append(Sample(prompt + text, len(prompt)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"--texts: cannot read {path}: {error!r}; see --help") from None
    if not samples:
        raise SetupError(f"--texts: {path} holds no text")
    return samples


def main(arguments: list[str] | None = None) -> int:
    """Writes KEPT_FILE to the model's directory; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m optimist_worker.conversion.calibration")
    parser.description = (__doc__ or "").split("\n", 1)[0]
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines: prompt, text")
    parser.add_argument("--agreement", type=float, default=0.98, help="share of same tokens")
    options = parser.parse_args(arguments)

    def start() -> None:
        configure_logging("info")
        name = str(options.model)
        check_model(name, "--model", needs_weights=True)
        samples = read_samples(options.texts, options.model / "tokenizer.json")
        module = load_float32(name)
        kept: dict[str, list[str]] = {}
        for bits in (8, 4):
            kept[f"int{bits}"], share = choose_kept(module, bits, samples, options.agreement)
            logger.info("int%d: %d layers kept, %.4f agree", bits, len(kept[f"int{bits}"]), share)
        (options.model / KEPT_FILE).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    return run_or_explain("calibration", start)


if __name__ == "__main__":
    sys.exit(main())
