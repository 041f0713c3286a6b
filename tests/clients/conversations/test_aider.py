"""aider, which has no tools: it edits by blocks in the answer, and says what was wrong with one."""

import json
from pathlib import Path

import pytest

from tests.clients.conversations.agents import AGAIN, run
from tests.clients.conversations.conftest import Served
from tests.clients.conversations.scripted import NAME, Prompt
from tests.clients.installed import AIDER, needs

ASK = "Make the code word egret."


def block(before: str) -> str:
    """Writes an edit."""
    after = "The code word is egret."
    edit = f"<<<<<<< SEARCH\n{before}\n=======\n{after}\n>>>>>>> REPLACE"
    return f"So be it.\n\nnote.txt\n```\n{edit}\n```\n"


def plan(prompt: Prompt) -> str:
    """Edits what is not there, then what is, as aider asks for it."""
    if AGAIN in prompt.asked:
        return "Once more: egret"
    is_refused = "SearchReplaceNoExactMatch" in prompt.asked
    return block("The code word is heron." if is_refused else "It is heron, they say.")


@pytest.mark.slow
@needs(AIDER / "aider")
def test_aider(served: Served, directory: Path) -> None:
    home = directory.parent / "home"
    # It would fetch these from the network.
    prices = home / ".aider" / "caches" / "model_prices_and_context_window.json"
    prices.parent.mkdir(parents=True)
    prices.write_text(json.dumps({f"openai/{NAME}": {"max_input_tokens": 80_000}}))
    variables = {
        "OPENAI_API_BASE": f"{served.url}/v1",
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [
        *("aider", "--model", f"openai/{NAME}", "--edit-format", "diff", "--yes-always"),
        *("--no-git", "--no-pretty", "--no-check-update", "--no-show-release-notes"),
        *("--analytics-disable", "--no-show-model-warnings", "--restore-chat-history"),
        "--message",
    ]
    before = served.refused()
    with served.scheduler.follow(plan) as prompts:
        run([*command, ASK, "note.txt"], AIDER, directory, variables)
        assert (directory / "note.txt").read_text() == "The code word is egret.\n"
        assert len(prompts) == 2
        assert "Once more: egret" in run([*command, AGAIN], AIDER, directory, variables)
    assert served.refused() == before
