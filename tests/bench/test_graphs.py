"""`optimist bench graphs`: shares of a trace, beside those of captures by exact bounds."""

import json
from pathlib import Path
from typing import Any

import pytest

from optimist_bench.graphs import main, read_trace
from optimist_common.errors import SetupError
from tests.bench.conftest import ReportOf

STEP: dict[str, Any] = {
    "num_rows": 1,
    "num_tokens": 1,
    "num_logits": 1,
    "max_num_queries": 1,
    "max_num_keys": 64,
    "max_num_drafts": 0,
    "uses_windows": False,
    "has_trees": False,
    "uses_drafter": False,
    "max_unseen": 0,
    "num_unseen": 0,
    "has_grammar": False,
    "has_minimum": False,
    "needs": [False, False, False, False, 0, False, False],
}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Forty steps of growing drafts, and one with a grammar after a plan."""
    steps = [
        STEP
        | {"num_tokens": 1 + number, "num_logits": 1 + number, "max_num_queries": 1 + number}
        | {"max_num_drafts": number, "max_num_keys": 64 + number, "least_chance": number / 99}
        for number in range(40)
    ]
    lines = [*steps, {"plan": [1, 0]}, STEP | {"has_grammar": True}]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_shares_of_few_sizes_beside_exact_bounds(
    trace: str, report_of: ReportOf, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes, exact = report_of("graphs", "--trace", trace)["policies"]
    for policy in (sizes, exact):
        assert policy["steps"] == 41
        assert policy["eager"] + policy["captured_anew"] + policy["replayed"] == pytest.approx(1)
    assert exact["eager"] == 1
    assert exact["keys"] == 41
    # All but the grammar's replay what was captured before.
    assert sizes["eager"] == pytest.approx(1 / 41)
    assert sizes["captured_anew"] <= 4 / 41
    assert 0.5 < sizes["from_start"] <= sizes["replayed"]
    assert 1 < sizes["padding"] < 2
    late, _ = report_of("graphs", "--trace", trace, "--at-start", "0")["policies"]
    assert late["captured_at_start"] == late["from_start"] == 0
    assert 1 / 41 < late["captured_anew"] < 10 / 41
    assert main(["--trace", trace]) == 0
    assert "few sizes, captured at start" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["no json", "{}", '{"plan": []}', json.dumps(STEP | {"new": 1})])
def test_what_is_no_trace_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(SetupError, match="--trace"):
        read_trace(str(path))
    with pytest.raises(SetupError, match="cannot read"):
        read_trace(str(tmp_path / "none"))
