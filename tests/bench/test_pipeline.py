"""`optimist bench pipeline`: what it computes of traces; and a short run with real stages."""

import json

import pytest

from optimist_bench import pipeline
from optimist_common.errors import SetupError
from tests.stack import free_port


def passes(*spans: tuple[int, int]) -> list[dict[str, int]]:
    return [{"begin_ns": begin, "end_ns": end} for begin, end in spans]


def test_what_no_pass_covers_is_idle() -> None:
    first = passes((100, 140), (140, 180))
    last = passes((140, 180), (180, 200))
    found = pipeline.find_bubbles([first, last])
    assert found["idle_shares"] == [0.2, 0.4]
    assert found["bubble"] == 0.3


def test_a_short_run_reports_both_stages(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--stages", "2", "--plans", "2", "--rows", "5", "--steps", "3", "--layers", "2"]
    words = [*options, "--hidden", "64", "--port", str(free_port()), "--json"]
    assert pipeline.main(words) == 0
    report = json.loads(capsys.readouterr().out)
    (run,) = report["runs"]
    assert (run["num_stages"], run["plans_in_flight"], run["rows_per_plan"]) == (2, 2, 2)
    assert run["tokens_per_second"] > 0
    assert len(run["idle_shares"]) == 2
    assert all(0 <= share < 1 for share in run["idle_shares"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--plans", "5", "--rows", "4"], "--plans: each needs a row"),
        (["--stages", "5", "--layers", "4"], "--stages: each needs a layer"),
        (["--plans", "0"], "numbers from 1 to 16"),
    ],
)
def test_what_cannot_be_run_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        pipeline.main(words)
