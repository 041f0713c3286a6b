"""Which files one request crosses: those whose functions run for it, and the records these use."""

import ast
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import grimp
from openai import OpenAI

from tests.integration.edit import ask, edits
from tests.stack import Stack

# Longer than the window with the request, so that what runs every second runs more often.
IDLE_SECONDS = 6.0
SETTLE_SECONDS = 1.0


def trace_request() -> set[Path]:
    """Returns the files of which a function runs for one request, in any process.

    It is a greedy streamed chat with a prediction, the second request of services that have just
    begun. Functions that run as well without requests, such as health checks, are left out.
    """
    first, second = edits(2)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        stack = Stack(PYTHONPATH=str(Path(__file__).parent), HOUSE_TRACE=name)
        try:
            pids = stack.service_pids()
            with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
                # Whatever is imported or built at a first request.
                ask(client, first, first.before)
                time.sleep(SETTLE_SECONDS)
                (directory / "idle").touch()
                time.sleep(IDLE_SECONDS)
                (directory / "request").touch()
                time.sleep(SETTLE_SECONDS)
                assert ask(client, second, second.before).accepted, "the prediction was not used"
            time.sleep(SETTLE_SECONDS)
            (directory / "end").touch()
            traces = [_read(directory / f"{pid}.json") for pid in pids]
        finally:
            stack.stop()
    calls: dict[str, Counter[tuple[str, str, int]]] = {"idle": Counter(), "request": Counter()}
    for window, counts in calls.items():
        for trace in traces:
            for file, function, line, count in trace[window]:
                counts[file, function, line] += count
    idle, request = calls["idle"], calls["request"]
    return {Path(function[0]) for function in request if request[function] > 2 * idle[function]}


def _read(path: Path) -> dict[str, list[tuple[str, str, int, int]]]:
    deadline = time.monotonic() + 30.0
    while not path.exists():
        assert time.monotonic() < deadline, f"no trace: {path}"
        time.sleep(0.05)
    trace: dict[str, list[tuple[str, str, int, int]]] = json.loads(path.read_text())
    return trace


def imported_records(files: set[Path], packages: list[Path]) -> set[Path]:
    """Returns the files that `files` import and that have no function that could run.

    Args:
        files: Modules of the packages.
        packages: Importable packages.
    """
    graph = grimp.build_graph(*(package.name for package in packages), cache_dir=None)
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts): path
        for package in packages
        for path in package.rglob("*.py")
    }
    imported = {
        paths[target]
        for module, path in paths.items()
        if path in files
        for target in graph.find_modules_directly_imported_by(module)
        if target in paths
    }
    return {path for path in imported - files if is_record(path)}


def is_record(path: Path) -> bool:
    """Returns whether a module has no function with a body: records, constants, interfaces."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return all(
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        for function in functions
        for statement in function.body
    )
