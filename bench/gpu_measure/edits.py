"""Texts that were expected, but for some edits."""

import random
import time
from collections.abc import Sequence

from gpu_measure.bench import Bench
from gpu_measure.models import load, write_text
from gpu_measure.slots import BLOCK_SIZE, Loaded, admit, checked, next_plan
from optimist_worker.core.plan import MOST_WINDOW_NODES, WindowUpdate

CHUNK = 12
"""Tokens of a line of the scripted texts."""
WARM_UP = 256
"""Tokens after which all sizes of passes have occurred."""
ANCHOR = 3
"""Right tokens in a row after which a prediction is taken up again."""


def measure_edits(bench: Bench) -> None:
    """Generates a text, then the same with predictions that are wrong in places."""
    length = 36 if bench.is_tiny else 768
    for shape in bench.shapes:
        loaded = load(bench, shape)
        for is_firm in (True, False):
            if bench.left < 10:
                bench.leave_out(f"{shape.name}, firm {is_firm}", "no time")
                continue
            write_text(loaded, is_firm=is_firm)
            try:
                compare_edits(bench, loaded, length, is_firm=is_firm)
            finally:
                write_text(loaded, is_firm=True)


def compare_edits(bench: Bench, loaded: Loaded, length: int, *, is_firm: bool) -> None:
    """Adds a row for each prediction, and drafts, of a text."""
    name = f"{loaded.shape.name} {'firm' if is_firm else 'free'} text"
    plain, reference = time_text(bench, loaded, [], length, 0)
    bench.add(f"{name}, no drafts", plain / length * 1e3, "ms/token")
    widths = (7,) if bench.is_tiny else (63, 127)
    edits = {"0% edits": 0.0, "5% edits": 0.05, "20% edits": 0.2, "200 right, 10 wrong": None}
    for drafts in widths if is_firm else widths[:1]:
        # The same passes as with drafts, but without any.
        padded, unchanged = time_text(bench, loaded, [], length, drafts)
        note = describe_identity(unchanged, reference)
        row = f"{name}, passes of {drafts + 1} without drafts"
        bench.add(row, padded / length * 1e3, "ms/token", note=note)
        for edit, share in edits.items():
            if bench.left < 4:
                bench.leave_out(f"{name}, {edit}, {drafts} drafts", "no time")
                continue
            prediction = edited(reference, share, loaded.shape.vocab_size)
            seconds, text = time_text(bench, loaded, prediction, length, drafts)
            bench.add(
                f"{name}, {edit}, {drafts} drafts: speedup",
                plain / seconds,
                "x",
                note=f"{seconds / length * 1e3:.3f} ms/token; {describe_identity(text, reference)}"
                f"; to passes of that size: {describe_identity(text, unchanged)}",
            )
            if is_firm and text != reference:
                bench.fail(f"{name}, {edit}", "the text changed with its prediction")


def edited(text: Sequence[int], share: float | None, vocab_size: int) -> list[int]:
    """Returns a text with a share of its lines replaced; None: 10 tokens after every 200."""
    rng = random.Random(5)  # noqa: S311
    wrong = [rng.randrange(vocab_size) for _ in text]
    if share is None:
        return [wrong[i] if i % 210 >= 200 else token for i, token in enumerate(text)]
    number = -(-len(text) // CHUNK)
    lines = set(rng.sample(range(number), round(share * number)))
    return [wrong[i] if i // CHUNK in lines else token for i, token in enumerate(text)]


def time_text(
    bench: Bench, loaded: Loaded, prediction: list[int], length: int, drafts: int
) -> tuple[float, list[int]]:
    """Returns the seconds of a text of one row, and the text; graphs are captured before."""
    # The first tokens twice, so that graphs are captured; then all of them, timed.
    for number in (length,) if bench.is_tiny else (WARM_UP, WARM_UP, length):
        admit(loaded, loaded.runner, 1, 64 if bench.is_tiny else 1024 - BLOCK_SIZE)
        begin = time.perf_counter()
        text = predict_text(loaded, prediction, number, drafts)
    return time.perf_counter() - begin, text


def predict_text(loaded: Loaded, prediction: list[int], length: int, drafts: int) -> list[int]:
    """Generates a text with a prediction, which is taken up again after every edit."""
    output: list[int] = []
    is_lost, end = True, 0
    while len(output) < length:
        at, windows = len(output), []
        agrees = prediction[max(0, at - ANCHOR) : at] == output[-ANCHOR:]
        is_over = not is_lost and end - at < MOST_WINDOW_NODES // 2
        if prediction and (is_over or (is_lost and (agrees or at == 0))):
            end, is_lost = at + MOST_WINDOW_NODES, False
            windows = [WindowUpdate(0, 1 + at, prediction[at:end])]
        width = drafts if not prediction or not is_lost else 0
        plan = next_plan(loaded, 1, width, windows=windows)
        tokens = checked(loaded.runner.execute(plan)).token_ids.tolist()
        is_lost |= tokens != prediction[at : at + len(tokens)]
        output += tokens
    return output[:length]


def describe_identity(text: list[int], reference: list[int]) -> str:
    """Says whether two texts are the same, or from where on they are not."""
    for position, (one, other) in enumerate(zip(text, reference, strict=True)):
        if one != other:
            return f"the same up to token {position} of {len(reference)}"
    return "identical"
