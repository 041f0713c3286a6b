"""Coding agents at work: what their users see, and that no request of theirs is refused."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.clients.conversations.agents import AGAIN, AGENTS, ASK, Agent
from tests.clients.conversations.conftest import Served
from tests.clients.conversations.scripted import NAME, Plan, Prompt
from tests.stack import REPOSITORY

NODE = Path(__file__).parent / "node_modules" / ".bin"
AIDER = REPOSITORY / ".venv-clients" / "aider" / "bin"
WORD = "heron"
SECONDS = 120

pytestmark = pytest.mark.slow


def plan_of(agent: Agent, directory: Path) -> Plan:
    """Returns what a good model does: it reads, writes what it read, and says it."""

    def plan(prompt: Prompt) -> str:
        if not prompt.tools:
            return "A title"
        said = re.findall(r"code word is (\w+)\.", "".join(text for _, text in prompt.turns))
        if AGAIN in prompt.asked:
            return f"Once more: {said[-1]}"
        match prompt.results:
            case []:
                return f"I read it.\n{agent.read(prompt, directory / 'note.txt')}"
            case [_]:
                return agent.write(prompt, directory / "answer.txt", said[-1])
        return f"It is {said[-1]}, as I wrote."

    return plan


def run(command: Sequence[str | Path], path: Path, cwd: Path, variables: Mapping[str, str]) -> str:
    """Runs an agent, which sees nothing of this user's settings; returns what it printed.

    Whatever it has started ends with it.
    """
    home = cwd.parent / "home"
    environment = {
        "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(cwd.parent),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        **variables,
    }
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{command}: not done within {SECONDS} s\n{output}") from None
    assert process.returncode == 0, f"{command} ended with {process.returncode}\n{output}"
    return output


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the agent works; beside it is its home."""
    (tmp_path / "home").mkdir()
    (made := tmp_path / "work").mkdir()
    (made / "note.txt").write_text(f"The code word is {WORD}.\n")
    return made


@pytest.mark.parametrize("name", AGENTS)
def test_agent(served: Served, directory: Path, name: str) -> None:
    agent, url = AGENTS[name], f"{served.url}/v1"
    home = directory.parent / "home"
    for place, text in agent.files(url).items():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(text)
    if not (NODE / agent.command[0]).exists():
        pytest.skip(f"{agent.command[0]} is not installed: `make clients`")
    known = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": NAME}
    variables = known | dict(agent.variables)
    before = served.refused()
    with served.scheduler.follow(plan_of(agent, directory)) as prompts:
        output = run([*agent.command, ASK], NODE, directory, variables)
        assert f"It is {WORD}, as I wrote." in output
        assert (directory / "answer.txt").read_text().strip() == WORD
        assert len([one for one in prompts if one.tools]) == 3
        if agent.again is not None:
            output = run([*agent.command, *agent.again, AGAIN], NODE, directory, variables)
            assert f"Once more: {WORD}" in output
    assert served.refused() == before
