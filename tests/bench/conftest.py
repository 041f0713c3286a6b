"""Benchmarks as commands."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from optimist_bench.__main__ import main

ReportOf = Callable[..., Any]
"""From a benchmark's name and flags to its report."""


@pytest.fixture
def report_of(capsys: pytest.CaptureFixture[str]) -> ReportOf:
    """Runs a benchmark, which is to succeed, and returns what it prints with --json."""

    def run(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run
