"""Coding agents: how each is set up for a server of one's own, called, and which tools it has."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.conversations.scripted import NAME, Prompt

ASK = "Read note.txt, write its code word into answer.txt, and say it."
AGAIN = "Which one was it, once more?"
WORD = "heron"
"""What note.txt says."""
_SECONDS = 120


@dataclass(frozen=True)
class Agent:
    """One of them; `read` and `write` say what a model writes to call its tools."""

    command: Sequence[str]
    """To which is added what to ask."""
    again: Sequence[str] | None
    """What is added before that to go on with the last conversation; None if it cannot."""
    read: Callable[[Prompt, Path], str]
    write: Callable[[Prompt, Path, str], str]
    files: Callable[[str], Mapping[str, str]] = lambda _: {}
    """Settings by their paths in the home directory, of the URL."""
    variables: Mapping[str, str] = field(default_factory=dict)


def _codex_files(url: str) -> dict[str, str]:
    return {
        ".codex/config.toml": f"""
model = "{NAME}"
model_provider = "optimist"
check_for_update_on_startup = false
analytics.enabled = false
[model_providers.optimist]
name = "Optimist"
base_url = "{url}"
wire_api = "responses"
"""
    }


def _opencode_files(url: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": url, "apiKey": "none"},
        "models": {NAME: {}},
    }
    settings = {
        "model": f"optimist/{NAME}",
        "provider": {"optimist": provider},
        "autoupdate": False,
        "share": "disabled",
    }
    return {".config/opencode/opencode.json": json.dumps(settings)}


def _qwen_files(_url: str) -> dict[str, str]:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
    }
    return {".qwen/settings.json": json.dumps(settings)}


def _continue_files(url: str) -> dict[str, str]:
    model = {
        "name": NAME,
        "provider": "openai",
        "model": NAME,
        "apiBase": url,
        "apiKey": "none",
        "capabilities": ["tool_use"],
    }
    settings = {"name": "tests", "version": "1.0.0", "schema": "v1", "models": [model]}
    return {"config.yaml": json.dumps(settings)}


def _cline_files(url: str) -> dict[str, str]:
    chosen = {"provider": (name := "openai-compatible"), "apiKey": "none"}
    chosen |= {"model": NAME, "baseUrl": url}
    one = {"settings": chosen, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: one}}
    settings = {"telemetryOptOut": True, "autoUpdateEnabled": False}
    return {
        ".cline/data/settings/providers.json": json.dumps(providers),
        ".cline/data/settings/global-settings.json": json.dumps(settings),
    }


AGENTS = {
    "codex": Agent(
        command=("codex", "exec", "--skip-git-repo-check", "-s", "danger-full-access"),
        again=("resume", "--last"),
        files=_codex_files,
        read=lambda prompt, path: prompt.call("exec_command", cmd=f"cat {path}"),
        write=lambda prompt, path, text: prompt.call("exec_command", cmd=f"echo {text} > {path}"),
    ),
    "opencode": Agent(
        command=("opencode", "run"),
        again=("--continue",),
        files=_opencode_files,
        variables={
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        read=lambda prompt, path: prompt.call("read", filePath=str(path)),
        write=lambda prompt, path, text: prompt.call("write", filePath=str(path), content=text),
    ),
    "qwen": Agent(
        command=("qwen", "--yolo", "--auth-type", "openai"),
        again=("--continue",),
        files=_qwen_files,
        read=lambda prompt, path: prompt.call("read_file", file_path=str(path)),
        write=lambda prompt, path, text: prompt.call(
            "write_file", file_path=str(path), content=text
        ),
    ),
    "continue": Agent(
        command=("cn", "--config", "../home/config.yaml", "--auto", "-p"),
        again=("--resume",),
        files=_continue_files,
        variables={"CONTINUE_TELEMETRY_ENABLED": "0"},
        read=lambda prompt, path: prompt.call("Read", filepath=str(path)),
        write=lambda prompt, path, text: prompt.call("Write", filepath=str(path), content=text),
    ),
    "cline": Agent(
        command=("cline", "--json", "--thinking", "low"),
        # It goes on only where there is a terminal.
        again=None,
        files=_cline_files,
        # Without it a service of its own stays when the command ends.
        variables={"CLINE_SESSION_BACKEND_MODE": "local"},
        read=lambda prompt, path: prompt.call("read_files", files=[{"path": str(path)}]),
        write=lambda prompt, path, text: prompt.call("editor", path=str(path), new_text=text),
    ),
}


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
        output, _ = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{command}: not done within {_SECONDS} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, f"{command} ended with {process.returncode}\n{output}"
    return output
