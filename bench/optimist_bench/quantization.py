"""`optimist bench quantization`: quality and speed of a model whose weights are rounded."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from tokenizers import Tokenizer

from optimist_bench.harness.command import format_table, names, run_command
from optimist_common.errors import SetupError
from optimist_common.settings import CommaSeparated, ServiceSettings

_PROMPTS = (
    "The history of the printing press begins in",
    "def is_prime(number):\n",
    "Water boils at a lower temperature on a mountain because",
    "A letter to the town council about the bridge:\n\nDear members of the council,\n",
)
_BITS: dict[str, Literal[4, 8] | None] = {"none": None, "int8": 8, "int4": 4}


class QuantizationSettings(ServiceSettings):
    """Compares a model in bfloat16 and with rounded weights, on the CPU, with float32.

    The texts are the model's own, greedy in float32.
    """

    section: ClassVar[str] = "bench_quantization"

    model: str = Field("models/smollm2", description="directory of the model, with tokenizer.json")
    quantization: Annotated[CommaSeparated, names(list(_BITS), required=True)] = Field(
        default=list(_BITS),
        description="what is compared, with commas: none (bfloat16), int8, int4",
    )
    tokens: int = Field(64, ge=1, le=4096, description="tokens of each of the four texts")
    num_threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0 leaves it to PyTorch")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(QuantizationSettings, arguments, _measure, _describe)


def _measure(settings: QuantizationSettings) -> dict[str, Any]:
    path = Path(settings.model).expanduser() / "tokenizer.json"
    if not path.is_file():
        raise SetupError(f"--model: {path} is missing; the prompts need a tokenizer")
    # PyTorch takes seconds.
    from optimist_worker.conversion.quantization import compare, set_threads, write_references

    set_threads(settings.num_threads)
    tokenizer = Tokenizer.from_file(str(path))
    prompts = [tokenizer.encode(prompt).ids for prompt in _PROMPTS]
    references = write_references(settings.model, prompts, settings.tokens)
    run = partial(compare, settings.model, references=references)
    results = {name: run(bits=_BITS[name]) for name in settings.quantization}
    return {
        "model": settings.model,
        "num_tokens": sum(len(one.token_ids) - one.start for one in references),
        "results": results,
    }


def _describe(report: dict[str, Any]) -> str:
    rows = [[name, *result.values()] for name, result in report["results"].items()]
    header = ["weights", *next(iter(report["results"].values()))]
    return format_table(header, rows)
