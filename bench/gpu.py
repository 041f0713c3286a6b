"""Measures Optimist on a CUDA GPU, beside what the hardware allows.

    python bench/gpu.py                                   all sections, at most 500 seconds
    python bench/gpu.py --sections ceilings,grid --json report.json
    python bench/gpu.py --device cpu --tiny --json -      tries the script itself, in seconds

It needs a checkout, torch, triton, transformers and numpy, and no network: the models are random
weights of the shapes of Llama-3.1-8B and Llama-3.2-1B. A section that fails is reported and the
rest goes on. The table comes last; docs/gpu.md says what it means.
"""

import argparse
import dataclasses
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = ("common", "worker", "scheduler", "proposer", "gateway")
_PATHS = [str(_ROOT / "services" / folder) for folder in _FOLDERS]
_PATHS += [str(_ROOT / folder) for folder in ("aligner", "protos/gen", "cli", "bench", "training")]
# What is measured is this checkout, not what may be installed; the services need it as well.
sys.path[:0] = _PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, os.environ.get("PYTHONPATH", "")])

try:
    import torch
    import transformers
    from gpu_measure.bench import Bench, format_cells, say
    from gpu_measure.edits import measure_edits
    from gpu_measure.exactness import measure_exactness
    from gpu_measure.grid import measure_grid, measure_overlap
    from gpu_measure.kernel import measure_ceilings, measure_kernel
    from gpu_measure.parts import measure_parts
    from gpu_measure.slots import NotPossibleError
except ImportError as missing:
    sys.exit(f"gpu.py: {missing}; it needs torch, triton, transformers, numpy and a checkout")


def measure_services(bench: Bench) -> None:
    """Measures scheduler and worker as processes, where what they need is installed."""
    try:
        from gpu_measure.services import measure_served
    except ImportError as error:
        raise NotPossibleError(f"{error}: the services need it") from None
    measure_served(bench)


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the measurement."""

    measure: Callable[[Bench], None]
    seconds: float
    """Most that it may take."""


SECTIONS = {
    "ceilings": Section(measure_ceilings, 20.0),
    "kernel": Section(measure_kernel, 50.0),
    "exactness": Section(measure_exactness, 50.0),
    "grid": Section(measure_grid, 150.0),
    "overlap": Section(measure_overlap, 30.0),
    "parts": Section(measure_parts, 30.0),
    "edits": Section(measure_edits, 80.0),
    "services": Section(measure_services, 110.0),
}


def run_section(bench: Bench, name: str) -> None:
    """Runs a section for at most its share of the time; notes why it could not run."""
    begin = time.monotonic()
    bench.section, bench.section_end = name, begin + SECTIONS[name].seconds
    if bench.left < 2:
        bench.skipped[name] = "no time"
        return
    say(f"\n{name}: at most {bench.left:.0f} s")
    try:
        SECTIONS[name].measure(bench)
    except NotPossibleError as error:
        bench.skipped[name] = str(error)
        say(f"  left out: {error}")
    except Exception as error:
        traceback.print_exc()
        bench.errors[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    gc.collect()
    say(f"  took {time.monotonic() - begin:.1f} s")


def describe_machine(bench: Bench) -> dict[str, Any]:
    """Returns what the figures hold for."""
    return {
        "device": torch.cuda.get_device_name(bench.device) if bench.is_cuda else "cpu",
        "dtype": str(bench.dtype).removeprefix("torch."),
        "is_tiny": bench.is_tiny,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sections", default=",".join(SECTIONS), help="some of: %(default)s")
    parser.add_argument("--seconds", type=float, default=500.0, help="most seconds of all of it")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script itself")
    parser.add_argument("--json", default="", metavar="FILE", help="writes a report; - prints it")
    options = parser.parse_args(arguments)
    options.sections = options.sections.split(",")
    unknown = sorted(set(options.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"--sections: there is no {unknown[0]}; choose of {', '.join(SECTIONS)}")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device: there is no CUDA GPU; --device cpu --tiny tries the script itself")
    return options


def measure(options: argparse.Namespace, directory: Path) -> Bench:
    """Runs the sections that are asked for."""
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    bench = Bench(
        device=device,
        dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
        is_tiny=options.tiny,
        directory=directory,
        deadline=time.monotonic() + options.seconds,
    )
    say(" ".join(f"{name}={value}" for name, value in describe_machine(bench).items()))
    for name in SECTIONS:
        if name in options.sections:
            run_section(bench, name)
    return bench


def print_report(bench: Bench) -> None:
    """Prints what was left out, and the table."""
    for title, notes in (("left out", bench.skipped), ("errors", bench.errors)):
        if notes:
            say(f"\n{title}")
        for what, why in notes.items():
            say(f"  {what}: {why}")
    header = f"{'what':<62} {'measured':>11} {'unit':<9} {'floor':>9} {'ratio':>6} {'noise':>6}"
    say(f"\n{header}  note")
    section = ""
    for row in bench.rows:
        if row.section != section:
            section = row.section
            say(section)
        say(f"  {format_cells(row)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table, writes the report; returns 1 if anything has failed."""
    options, begin = parse(arguments), time.monotonic()
    quiet: Callable[[], None] = transformers.logging.set_verbosity_error
    quiet()
    with tempfile.TemporaryDirectory() as directory:
        bench = measure(options, Path(directory))
    print_report(bench)
    report = {
        **describe_machine(bench),
        "seconds": time.monotonic() - begin,
        "ceilings": dataclasses.asdict(bench.ceilings),
        "rows": [{**dataclasses.asdict(row), "ratio": row.ratio} for row in bench.rows],
        "skipped": bench.skipped,
        "errors": bench.errors,
    }
    if options.json == "-":
        say(json.dumps(report))
    elif options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")
    return 1 if bench.errors else 0


if __name__ == "__main__":
    sys.exit(main())
