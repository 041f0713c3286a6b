"""The table, and the targets beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_measure.bench import Bench, format_cells, say


@dataclass(frozen=True)
class Target:
    """A target of the design, and what was measured; its figures are an H200's."""

    name: str
    target: str
    measured: str
    met: bool | None


def judge(bench: Bench) -> list[Target]:
    """Compares with the targets, which tiny shapes have none of."""
    targets: list[Target] = []

    def compare(
        name: str, target: str, measured: float | None, limit: float, *, most: bool
    ) -> None:
        if measured is None or bench.is_tiny:
            targets.append(Target(name, target, "not measured", None))
            return
        met = measured <= limit if most else measured >= limit
        targets.append(Target(name, target, f"{measured:.3g}", met))

    def step(shape: str, batch: int, ctx: int, drafts: int = 0) -> float | None:
        return bench.steps.get((shape, batch, ctx, drafts))

    def scaled(seconds: float | None, factor: float) -> float | None:
        return None if seconds is None else seconds * factor

    decode = step("8B", 1, 1024)
    compare("T1", "8B batch 1 ctx 1K <= 4.1 ms", scaled(decode, 1e3), 4.1, most=True)
    compare("T2", "1B batch 1 <= 0.85 ms", scaled(step("1B", 1, 1024), 1e3), 0.85, most=True)
    served = scaled(bench.figures.get("served 1B 1"), 1e3)
    compare("T2", "1B batch 1 through services <= 0.95 ms", served, 0.95, most=True)
    for drafts, limit in ((15, 1.08), (63, 1.15), (127, 1.35)):
        verify = step("8B", 1, 1024, drafts)
        ratio = verify / decode if verify and decode else None
        compare("T3", f"8B verify {drafts} / decode <= {limit}", ratio, limit, most=True)
    for shape, batch, limit in (("8B", 1, 2.0), ("1B", 1, 8.0), ("8B", 64, 1.0)):
        idle = bench.figures.get(f"idle {shape} {batch}")
        compare("T4", f"idle, {shape} batch {batch} <= {limit:g} %", idle, limit, most=True)
    for batch, ctx, limit in ((64, 1024, 9300.0), (32, 4096, 3200.0)):
        seconds = step("8B", batch, ctx)
        speed = batch / seconds if seconds else None
        what = f"8B batch {batch} ctx {ctx} >= {limit:g} tokens/s"
        compare("T5", what, speed, limit, most=False)
    for drafts, limit in ((63, 45.0), (127, 80.0)):
        speedup = bench.figures.get(f"8B 0% edits {drafts}")
        compare("T6", f"right text, {drafts} drafts >= {limit:g}x", speedup, limit, most=False)
    speedup = bench.figures.get("8B 200 right, 10 wrong 63")
    compare("T7", "200 right, 10 wrong >= 12x", speedup, 12.0, most=False)
    return targets


def print_report(bench: Bench, targets: Sequence[Target]) -> None:
    """Prints what was left out, the table and the targets."""
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
    say("\ntargets (their figures are an H200's)")
    words = {True: "met", False: "not met", None: ""}
    for target in targets:
        say(f"  {target.name:<3} {target.target:<44} {target.measured:>12}  {words[target.met]}")
