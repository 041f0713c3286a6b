"""`make mutants`: changes the scheduler's rules one by one, and shows that tests notice.

Every mutant of the functions in RULES (see `mutation`) runs the tests of the scheduler's core in a
process of its own, up to the first that fails. Those that no test notices have to be listed in
survivors.txt, because they change nothing that counts, such as how soon a buffer grows.

    make mutants                   all; ends with 1 for survivors that are not listed
    make mutants ARGS=plan_rows    those of the functions whose names contain it
    make mutants ARGS=--list       lists the survivors anew
"""

import argparse
import os
import pkgutil
import resource
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType

import hypothesis
import pytest
from _pytest._io import TerminalWriter
from _pytest.runner import runtestprotocol

import optimist_scheduler.core
from tests.mutants.mutation import Mutant, mutants
from tests.stack import REPOSITORY

RULES = (
    # Who gets which tokens, drafts and blocks.
    *(
        "plan_rows",
        "_share_budget",
        "_choose_drafts",
        "_find_rows_to_run",
        "admit",
        "match_prefix",
        "_chances",
    ),
    # What is in flight.
    *("_advance", "apply_schedule", "_take_back", "_find_alive", "_take_errors", "settle"),
    *("find_step", "Suspicion.note_loss", "Suspicion.note_length"),
    *("SchedulerState.rest", "SchedulerState.preempt", "SchedulerState.release_settled"),
    *("SchedulerState.register_prompts", "SchedulerState._stop", "RequestTable.release"),
    # Decisions that were made ahead.
    "repair",
    # What is delivered, and where an answer ends.
    *("find_stop", "find_new_tokens", "_cut_at_stops", "_find_earlier", "report_logprobs"),
    # Windows, and who drafted.
    *("follow_windows", "RequestTable.replace_window", "_learn_drafter"),
    *("SlotPlanes.set", "SlotPlanes.follow", "SlotPlanes.count_worth", "SlotPlanes._show"),
    *("DraftAccounts.record_kept", "DraftAccounts.record_drafted", "DraftAccounts.open"),
    *("WorkerWindows.find_drafted", "find_draft_nodes"),
)
SURVIVORS = Path(__file__).with_name("survivors.txt")
_TESTS = REPOSITORY / "tests" / "scheduler" / "core"
_LONG = ("test_random",)
# Of what a policy is worth, not of what is right.
_APART = ("test_no_loss", "test_goodput", "test_width", "test_blocks")
_MOST_SECONDS = 60


def find_functions(names: tuple[str, ...]) -> list[FunctionType]:
    """Returns the functions of the scheduler's core with these qualified names.

    Raises:
        LookupError: There is none of a name.
    """
    package = optimist_scheduler.core
    found: dict[str, FunctionType] = {}
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = import_module(each.name)
        owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
        for value in (value for owner in owners for value in vars(owner).values()):
            if isinstance(value, FunctionType) and value.__module__ == each.name:
                found[value.__qualname__] = value
    if missing := set(names) - set(found):
        raise LookupError(f"the scheduler has no {', '.join(sorted(missing))}")
    return [found[name] for name in names]


class MutantRunner:
    """A plugin of pytest that runs the collected tests against each mutant."""

    def __init__(self, functions: list[FunctionType]) -> None:
        """Runs nothing yet."""
        self._functions = functions
        self._running: dict[int, Mutant] = {}
        self.survivors: list[str] = []
        self.num_mutants = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Lets long tests come last."""
        items[:] = [item for item in items if not any(name in item.nodeid for name in _APART)]
        items.sort(key=lambda item: any(name in item.nodeid for name in _LONG))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs as many mutants at once as there are cores."""
        terminal = session.config.get_terminal_writer()
        for function in self._functions:
            terminal.line(function.__qualname__, flush=True)
            for mutant in mutants(function):
                if len(self._running) == os.cpu_count():
                    self._wait(terminal)
                if (pid := os.fork()) == 0:
                    _run(session, function, mutant)
                self._running[pid] = mutant
                self.num_mutants += 1
        while self._running:
            self._wait(terminal)
        return True

    def _wait(self, terminal: TerminalWriter) -> None:
        pid, status = os.wait()
        mutant = self._running.pop(pid)
        if status == 0:
            self.survivors.append(mutant.name)
            terminal.line(f"  survives: {mutant.name}", flush=True)


def _run(session: pytest.Session, function: FunctionType, mutant: Mutant) -> None:
    """Ends this process with 0 if all tests pass."""
    # Where a loop does not end.
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS))
    function.__code__ = mutant.code
    for item in session.items:
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
            os._exit(1)
    os._exit(0)


def main() -> int:
    """Runs the mutants; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of functions")
    parser.add_argument("--list", action="store_true", help="write survivors.txt")
    options = parser.parse_args()
    parts = options.names or [""]
    names = tuple(name for name in RULES if any(part in name for part in parts))
    runner = MutantRunner(find_functions(names))
    # Whoever fails need not be shrunk.
    phases = [hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=phases
    )
    words = ["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"]
    pytest.main([*words, "--hypothesis-profile", "mutants", str(_TESTS)], plugins=[runner])
    survivors = runner.survivors
    known = SURVIVORS.read_text().splitlines()
    if options.list:
        SURVIVORS.write_text("".join(f"{name}\n" for name in sorted(survivors)))
    num_new = len(set(survivors) - set(known))
    sys.stdout.write(f"{runner.num_mutants} mutants, {len(survivors)} survive, {num_new} new\n")
    return int(num_new > 0)


if __name__ == "__main__":
    sys.exit(main())
