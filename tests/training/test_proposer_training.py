"""`optimist train proposer` fits weights that load, the same ones for a seed."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from optimist_aligner.model.common import Continuations, write_continuations
from optimist_aligner.model.layout import BLOCKS
from optimist_aligner.model.weights import Weights
from optimist_common.errors import SetupError
from optimist_training.data.edits import unseen_edits
from optimist_training.drafters.command import main
from optimist_training.proposer import calibration, command

TOKENIZER = Path(__file__).parents[2] / "models" / "tiny-edit" / "tokenizer.json"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = ({"before": edit.before, "after": edit.after} for edit in unseen_edits(4, seed=3))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(pairs: Path, out: Path, *more: str) -> list[str]:
    options = ["--pairs", str(pairs), "--tokenizer", str(TOKENIZER), "--out", str(out)]
    return ["proposer", *options, "--processes", "1", *more]


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of processes that import everything first; one test has real ones."""
    pool = SimpleNamespace(map=map, shutdown=None)
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda *_, **_options: nullcontext(pool))


@pytest.fixture
def _uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration, which takes most of the time, has tests of its own."""
    monkeypatch.setattr(command, "calibrate", lambda *given: given[3])


def trained(pairs: Path, *more: str) -> str:
    """Returns the weights that one round writes."""
    out = pairs.with_suffix(".weights")
    assert main(arguments(pairs, out, "--rounds", "1", *more)) == 0
    return out.read_text()


@pytest.mark.usefixtures("_in_this_process")
def test_training_lowers_the_loss_and_writes_weights_that_load(
    pairs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "DOUBTS", (0.0, 0.25))
    monkeypatch.setattr(calibration, "TRUSTS", (0.0,))
    out = tmp_path / "weights.json"
    assert main(arguments(pairs, out, "--rounds", "2")) == 0
    printed = capsys.readouterr().out
    first, second = re.findall(r"first tokens (\S+), further ones \S+", printed)
    assert float(second) < float(first)
    blocks = json.loads(out.read_text())
    assert list(blocks) == list(BLOCKS)
    weights = Weights([logit for name in BLOCKS for logit in blocks[name]])
    assert any(weights.logits)


@pytest.mark.usefixtures("_in_this_process", "_uncalibrated")
def test_answers_of_conversations_are_fitted_to_with_other_counts(
    pairs: Path, tmp_path: Path
) -> None:
    row = json.loads(pairs.read_text().splitlines()[0])
    # Counts are of use where a prompt has blocks, as those of agents have.
    answer = {"prompt": f"```\nls\n```\nuser: {row['before']}\n", "answer": row["after"]}
    path, counts = tmp_path / "answers.jsonl", tmp_path / "counts.json.gz"
    path.write_text(json.dumps(answer))
    counts.write_bytes(write_continuations(Continuations([], [], [], [])))
    assert trained(path) != trained(path, "--continuations", str(counts))


@pytest.mark.usefixtures("_uncalibrated")
def test_weights_depend_on_the_seed_and_not_on_the_number_of_processes(
    pairs: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    several = trained(pairs, "--processes", "2")
    request.getfixturevalue("_in_this_process")
    assert trained(pairs) == several
    assert trained(pairs, "--seed", "2") != several
    # Some are chosen if there are too many; long texts are left out.
    chosen = trained(pairs, "--max-pairs", "2")
    assert chosen != several
    with pairs.open("a") as file:
        file.write(json.dumps({"before": "a", "after": "b c\n" * 20_000}))
    assert trained(pairs, "--max-pairs", "2") == chosen
    assert "1 requests are left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rounds", "0"], "--rounds: must be at least 1"),
        (["--seed", "-1"], "--seed: must not be negative"),
        (["--pairs", "nowhere.jsonl"], "--pairs: cannot read nowhere.jsonl"),
        (["--continuations", "nowhere.gz"], "--continuations: cannot read nowhere.gz"),
        (["--tokenizer", "nowhere.json"], "--tokenizer: no file nowhere.json"),
        (["--out", "nowhere/weights.json"], "--out: nowhere/weights.json is not a file"),
    ],
)
def test_wrong_options_are_named(
    more: list[str], message: str, pairs: Path, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match=message):
        main([*arguments(pairs, tmp_path / "weights.json"), *more])


@pytest.mark.parametrize(
    ("after", "message"),
    [(3, "line 1 has no text 'after'"), ("", "no request has texts of 1 to")],
)
def test_wrong_pairs_are_named(after: object, message: str, tmp_path: Path) -> None:
    path, out = tmp_path / "pairs.jsonl", tmp_path / "weights.json"
    path.write_text(json.dumps({"before": "a", "after": after}))
    with pytest.raises(SetupError, match=message):
        main(arguments(path, out))
    assert not out.exists()
