"""Coding agents at work: what their users see, and that no request of theirs is refused."""

import re
from pathlib import Path

import pytest

from tests.clients.conversations.agents import AGAIN, AGENTS, ASK, WORD, Agent, run
from tests.clients.conversations.conftest import Served
from tests.clients.conversations.scripted import NAME, Plan, Prompt, thought
from tests.clients.installed import NODE, needs

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
                return (
                    thought("Let me see.")
                    + f"I read it.\n{agent.read(prompt, directory / 'note.txt')}"
                )
            case [_]:
                return agent.write(prompt, directory / "answer.txt", said[-1])
        return f"It is {said[-1]}, as I wrote."

    return plan


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(NODE / one.command[0])) for name, one in AGENTS.items()]
)
def test_agent(served: Served, directory: Path, name: str) -> None:
    agent, url = AGENTS[name], f"{served.url}/v1"
    home = directory.parent / "home"
    for place, text in agent.files(url).items():
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_text(text)
    known = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": NAME}
    variables = known | dict(agent.variables)
    before = served.refused()
    with served.scheduler.follow(plan_of(agent, directory)) as prompts:
        output = run([*agent.command, ASK], NODE, directory, variables)
        assert f"It is {WORD}, as I wrote." in output
        assert "<think>" not in output
        assert (directory / "answer.txt").read_text().strip() == WORD
        assert len([one for one in prompts if one.tools]) == 3
        if agent.again is not None:
            output = run([*agent.command, *agent.again, AGAIN], NODE, directory, variables)
            assert f"Once more: {WORD}" in output
    assert served.refused() == before
