"""`optimist bench hybrid`: what it costs to take drafts back in recurrent layers, and what they
bring."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from optimist_bench.harness.command import format_table, numbers, run_command
from optimist_common.settings import CommaSeparated, ServiceSettings


class HybridSettings(ServiceSettings):
    """Compares ways to take drafts back, in layers of real sizes with random numbers, and counts
    the tokens per pass of small models whose text was predicted."""

    section: ClassVar[str] = "bench_hybrid"

    drafts: Annotated[CommaSeparated, numbers(1, 256)] = Field(
        default=["1", "8", "64"], description="drafts of a request, with commas"
    )
    rounds: int = Field(
        8, ge=1, le=1000, description="times that each way is timed; the best counts"
    )
    tokens: int = Field(240, ge=16, le=400, description="tokens of each predicted text")
    wrong_every: int = Field(12, ge=2, le=400, description="of a prediction, the n-th token")
    num_threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0 leaves it to PyTorch")


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if a text is not that without drafts."""
    return run_command(HybridSettings, arguments, _measure, _describe)


def _measure(settings: HybridSettings) -> dict[str, Any]:
    # PyTorch takes seconds.
    from optimist_bench.hybrid import ways
    from optimist_worker.conversion.quantization import set_threads

    set_threads(settings.num_threads)
    numbers_of_drafts = [int(number) for number in settings.drafts]
    costs = [
        {"layers": name, "way": way, "num_drafts": number}
        | ways.measure_way(name, way, number, settings.rounds)._asdict()
        for name in ways.SHAPES
        for number in numbers_of_drafts
        for way in ways.WAYS
    ]
    copies = [
        {"model": family, "num_drafts": number}
        | ways.copy_text(family, number, settings.tokens, settings.wrong_every)._asdict()
        for family in ways.FAMILIES
        for number in (0, *numbers_of_drafts)
    ]
    return {
        "chosen": ways.CHOSEN,
        "ways": costs,
        "copies": copies,
        "all_right": all(copy["is_same"] for copy in copies),
    }


def _describe(report: dict[str, Any]) -> str:
    tables = [
        format_table(list(rows[0]), [list(row.values()) for row in rows])
        for rows in (report["ways"], report["copies"])
    ]
    return "\n\n".join([*tables, f"chosen: {report['chosen']}"])
