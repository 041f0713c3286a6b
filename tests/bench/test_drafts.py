import json
from typing import Any, get_args

import pytest

from optimist_bench.drafts.contender import Entrant, Role, Run, Score
from optimist_bench.drafts.report import describe, summarise
from optimist_bench.peers.process import TokenIds
from tests.bench.conftest import ReportOf

END = 3
ANSWERS = [[7, 8, 9, END], [7, END]]
FACTS = {"edits": 2, "rounds": 2, "threads": 1}
NOBODY: Any = None
"""Nothing is asked for here."""


def _score(
    name: str, role: Role, seconds: tuple[float, float], answers: list[TokenIds] = ANSWERS
) -> Score:
    by_source = {"target": 3, "ngram": 3}
    runs = [Run(answers, each, 3, 4, by_source) for each in seconds]
    slower = [Run(answers, 2 * each, 3, 4, by_source) for each in seconds]
    both = {1: [slower[0], runs[0]], 8: [runs[1], slower[1]]}
    return Score(Entrant(name, role, NOBODY), both, {1: [0.5, 0.4], 8: []})


BASELINE = _score("baseline", "baseline", (8.0, 4.0))


def test_a_source_is_compared_with_no_speculation() -> None:
    report = summarise([BASELINE, _score("eagle", "source", (2.0, 2.0))], {}, FACTS, END)
    source = report["sources"]["eagle"]
    assert source["speedup"] == 4.0
    assert source["speedup_batch_8"] == 2.0
    assert source["tokens_per_pass"] == 2.0
    assert source["acceptance_rate"] == 0.75
    assert source["tokens_by_source"] == {"target": 3, "ngram": 3}
    assert source["seconds"] == {"batch_1": 2.0, "batch_8": 2.0}
    assert source["cpu_seconds"] == {"batch_1": 0.4, "batch_8": None}
    assert source["identical"]
    assert json.loads(json.dumps(report)) == report
    assert "eagle" in describe(report)


@pytest.mark.parametrize(
    ("answers", "identical"),
    [
        ([[7, 8, 9], [7]], True),
        ([[7, 8, 9, END], [7]], True),
        ([[7, 8, 9, END], [8, END]], False),
        ([[7, 8, END], [7, END]], False),
    ],
)
def test_only_the_end_token_may_be_left_out(answers: list[TokenIds], identical: bool) -> None:
    score = _score("generate", "peer", (2.0, 2.0), answers)
    report = summarise([BASELINE, score], {}, FACTS, END)
    assert report["peers"]["generate"]["identical"] is identical


@pytest.mark.parametrize(
    ("peers", "ahead"),
    [([(3.0, 3.0)], True), ([(3.0, 3.0), (3.0, 1.5)], False), ([(1.0, 3.0)], False)],
)
def test_the_best_source_has_to_beat_every_peer_at_both_batch_sizes(
    peers: list[tuple[float, float]], ahead: bool
) -> None:
    scores = [
        BASELINE,
        _score("medusa", "source", (2.0, 4.0)),
        _score("eagle", "source", (4.0, 2.0)),
        # It is given the answer, so it is out of the competition.
        _score("predicted", "predicted", (0.1, 0.1)),
        _score("together", "together", (0.1, 0.1)),
        *(_score(f"peer {number}", "peer", seconds) for number, seconds in enumerate(peers)),
    ]
    report = summarise(scores, {}, FACTS, END)
    assert report["best_source"] == {"batch_1": "medusa", "batch_8": "eagle"}
    assert report["ahead_of_every_peer"] is ahead
    assert report["together"]["tokens_per_pass"] == 2.0


def test_what_did_not_run_is_null_with_its_reason_and_nobody_is_ahead() -> None:
    for role in get_args(Role):
        alone = summarise([BASELINE, _score("alone", role, (1.0, 1.0))], {}, FACTS, END)
        assert alone["ahead_of_every_peer"] is False
    missing = {"medusa": "no heads", "vllm_cpu": "not installed"}
    report = summarise([BASELINE], missing, FACTS, END)
    assert report["sources"] == {"medusa": None}
    assert report["peers"] == {"vllm_cpu": None}
    assert report["missing"] == missing
    assert "medusa: not measured: no heads" in describe(report)


@pytest.mark.slow
def test_a_source_answers_as_the_model_does(
    report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIMIST_WORKER_COST_SECONDS", "0")
    flags = ["--edits", "2", "--rounds", "1", "--sources", "ngram", "--peers", ""]
    # So that it drafts, however long passes take.
    flags += ["--draft-width", "fixed"]
    report = report_of("drafts", *flags, "--max-tokens", "32", "--num-threads", "1")
    assert report["missing"] == {}
    ngram = report["sources"]["ngram"]
    assert ngram["identical"]
    assert ngram["tokens_per_pass"] > 1
    assert 0 < ngram["acceptance_rate"] <= 1
    assert report["predicted"]["identical"]
