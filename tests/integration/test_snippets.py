"""The commands and programs of the README and of docs/operations.md, run as they stand there.

Three things are replaced, by variables of the environment where there is one: ports, since others
may use those of the documents; `make up` is ended when the rest has run; and where models/smollm2
has not been made, which takes a download, the bundled model is served in its place and by its name.
That one only edits code, so what the README's snippets answer is then not compared. Services wait
for drafts as those of all tests do (`PATIENT`).
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from optimist_cli.serve.ports import free_ports
from tests.command import run
from tests.stack import (
    PATIENT,
    REPOSITORY,
    Process,
    descendants,
    free_port,
    our_engine,
    wait_for_end,
    wait_until,
)

pytestmark = our_engine(reason="the documents start our own services")
HAS_SMOLLM2 = (REPOSITORY / "models" / "smollm2").is_dir()
# Of a `make` that runs these tests: what it was given prevails over variables.
MAKE_VARIABLES = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL"}
ANSWERS = (
    "We will receive the parcel on Monday and send it on the next day. "
    "Please write the address on the front of the envelope.",
    "The museum is definitely open on Sunday, and the entrance is free for children.",
)
"""Of the README's programs, in their order."""
ROLES = ["redis", "proposer", "proposer", "worker", "worker", "scheduler", "gateway"]


class Command(NamedTuple):
    """What a console block says after `$`, and what it shows below it."""

    words: str
    output: str


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns the language and text of the fenced blocks of a document."""
    text = (REPOSITORY / page).read_text()
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[Command]:
    """Returns the commands of a console block; one goes on after a `|` or a backslash."""
    found = re.findall(r"^\$ ((?:.*[|\\]\n)*.*\n)((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    return [Command(*each) for each in found]


class Up:
    """`make up`, in a session of its own, as in a terminal."""

    def __init__(self, command: str, log: Path) -> None:
        """Waits until the services are ready."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        variables = {name: os.environ[name] for name in os.environ.keys() - MAKE_VARIABLES}
        variables |= PATIENT | {
            "MODEL": "" if HAS_SMOLLM2 else "models/tiny-edit",
            "ARGS": f"--port {port} --served-model-name smollm2",
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=REPOSITORY,
                env=variables,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._log = log
        try:
            wait_until(self._is_ready, "make up", 600)
        except AssertionError:
            self.end()
            raise

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.output
        return "  try it " in self.output

    def end(self) -> None:
        """Ends it as Ctrl-C does; AssertionError if a service is left."""
        pids = [*descendants(self.process.pid)]
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)
        wait_for_end(pids)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    console = next(text for language, text in blocks("README.md") if language == "console")
    first = commands(console)[0]
    assert first.words.startswith("make up ")
    running = Up(first.words, tmp_path_factory.mktemp("up") / "log")
    yield running
    running.end()


def test_the_commands_of_the_readme(up: Up) -> None:
    variables = {"OPTIMIST_COMPLETE_URL": up.url}
    _, *others = [
        command
        for language, text in blocks("README.md")
        if language == "console"
        for command in commands(text)
    ]
    assert others
    for words, output in others:
        answer = run("bash", "-c", words, env=os.environ | variables)
        assert answer == output if HAS_SMOLLM2 else answer


def test_the_programs_of_the_readme(up: Up) -> None:
    programs = [text for language, text in blocks("README.md") if language == "python"]
    for program, answer in zip(programs, ANSWERS, strict=True):
        text = program.replace("http://127.0.0.1:8000", up.url)
        if not HAS_SMOLLM2:
            text = text.replace("models/smollm2", "models/tiny-edit")
        # The program that starts services itself does it with these.
        output = run(sys.executable, "-c", text, env=os.environ | PATIENT)
        text, count = output.strip().replace("\n", " ").rsplit(" ", 1)
        if HAS_SMOLLM2:
            assert text == answer
            assert int(count) > 0


def test_make_up_ends_with_what_it_serves_and_a_request_to_paste(up: Up) -> None:
    _, summary_text = up.output.split("Optimist serves")
    summary = dict(re.findall(r"^  (\w[\w ]*?) {2,}(.*)$", summary_text, re.MULTILINE))
    assert summary["page"] == f"{up.url}/"
    assert summary["API"] == f"{up.url}/v1"
    answer = run("bash", "-c", summary["try it"])
    right = "We will receive the parcel on Monday and send it on the next day.\n"
    assert answer == right if HAS_SMOLLM2 else "def area(length, height):" in answer


def with_free_ports(block: str) -> str:
    """Replaces each port by one that is free: what follows `--port` and the loopback's address."""
    named = re.compile(r"(?<=--port )\d+|(?<=127\.0\.0\.1:)\d+")
    ports = sorted(set(named.findall(block)))
    free = dict(zip(ports, free_ports(len(ports)), strict=True))
    return named.sub(lambda found: str(free[found[0]]), block)


def service(words: str, number: int, folder: Path) -> Process:
    """Returns a service that a command line starts, in the folder of its log."""
    name, port = re.match(r"(?:\S*optimist )?(\w+)", words), re.search(r"--port (\d+)", words)
    assert name is not None
    assert port is not None
    command = ["bash", "-c", f"cd {REPOSITORY}; exec {words}"]
    log = folder / f"{number}.log"
    return Process(f"{name[1]}-{number}", command, f"127.0.0.1:{port[1]}", PATIENT, log)


def test_services_are_started_one_by_one(tmp_path: Path) -> None:
    (block,) = (text for _, text in blocks("docs/operations.md") if "redis-server" in text)
    *lines, request = commands(with_free_ports(block))
    services = [service(words, number, tmp_path) for number, (words, _) in enumerate(lines)]
    assert [each.role for each in services] == ROLES
    with ExitStack() as stack:
        for each in services:
            each.start()
            stack.callback(each.stop)
        for each in services:
            each.wait_until_healthy()
        assert run("bash", "-c", request.words).rstrip() == request.output.rstrip()
        with redis.Redis.from_url(f"redis://{services[0].address}") as store:
            assert store.dbsize() > 0
