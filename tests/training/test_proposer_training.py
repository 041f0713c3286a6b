import json
import re
from itertools import islice
from pathlib import Path

import pytest

from optimist_aligner.model.common import Continuations, write_continuations
from optimist_aligner.model.layout import BLOCKS
from optimist_aligner.model.weights import Weights
from optimist_common.errors import SetupError
from optimist_training.data.edits import edits
from optimist_training.drafters.command import main

TOKENIZER = Path(__file__).parents[2] / "models" / "tiny-edit" / "tokenizer.json"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = ({"before": edit.before, "after": edit.after} for edit in islice(edits("train", 3), 5))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(pairs: Path, out: Path, *more: str) -> list[str]:
    options = ["--pairs", str(pairs), "--tokenizer", str(TOKENIZER), "--out", str(out)]
    return ["proposer", *options, "--processes", "1", *more]


def logits(path: Path) -> list[float]:
    blocks = json.loads(path.read_text())
    assert list(blocks) == list(BLOCKS)
    return [logit for name in BLOCKS for logit in blocks[name]]


def test_training_lowers_the_loss_and_writes_weights_that_load(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "weights.json"
    assert main(arguments(pairs, out, "--rounds", "2")) == 0
    printed = capsys.readouterr().out
    losses = [
        (float(first), float(further))
        for first, further in re.findall(r"first tokens (\S+), further ones (\S+)", printed)
    ]
    assert len(losses) == 2
    assert losses[1][0] < losses[0][0]
    weights = Weights(logits(out))
    assert any(weights.logits)


def test_answers_of_conversations_are_fitted_to_with_other_counts(
    pairs: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in pairs.read_text().splitlines()[:2]]
    # Counts are of use where a prompt has blocks, as those of agents have.
    answers = [
        {"prompt": f"```\nls\n```\nuser: {row['before']}\n", "answer": row["after"]} for row in rows
    ]
    path, counts = tmp_path / "answers.jsonl", tmp_path / "counts.json.gz"
    path.write_text("".join(json.dumps(row) + "\n" for row in answers))
    counts.write_bytes(write_continuations(Continuations([], [], [], [])))
    texts = []
    for more in ((), ("--continuations", str(counts))):
        out = tmp_path / "weights.json"
        assert main(arguments(path, out, "--rounds", "1", *more)) == 0
        texts.append(out.read_text())
    assert texts[0] != texts[1]


def test_weights_depend_on_the_seed_and_not_on_the_number_of_processes(
    pairs: Path, tmp_path: Path
) -> None:
    texts = []
    for more in (("--seed", "1"), ("--seed", "1", "--processes", "2"), ("--seed", "2")):
        out = tmp_path / "weights.json"
        assert main(arguments(pairs, out, "--rounds", "1", *more)) == 0
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_pairs_are_chosen_by_the_seed_if_there_are_too_many(pairs: Path, tmp_path: Path) -> None:
    texts = []
    for most in ("2", "2", "5"):
        out = tmp_path / "weights.json"
        assert main(arguments(pairs, out, "--rounds", "1", "--max-pairs", most)) == 0
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rounds", "0"], "--rounds: must be at least 1"),
        (["--max-pairs", "0"], "--max-pairs: must be at least 1"),
        (["--processes", "-1"], "--processes: must be at least 1"),
        (["--seed", "-1"], "--seed: must not be negative"),
        (["--pairs", "nowhere.jsonl"], "--pairs: cannot read nowhere.jsonl"),
        (["--continuations", "nowhere.gz"], "--continuations: cannot read nowhere.gz"),
        (["--tokenizer", "nowhere.json"], "--tokenizer: no file nowhere.json"),
        (["--out", "nowhere/weights.json"], "--out: nowhere/weights.json is not a file"),
        (["--out", "."], r"--out: \. is not a file"),
    ],
)
def test_wrong_options_are_named(
    more: list[str], message: str, pairs: Path, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match=message):
        main([*arguments(pairs, tmp_path / "weights.json"), *more])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"before": "a", "after": 3}', "line 1 has no text 'after'"),
        ('{"before": "a", "after": ""}', "no request has texts of 1 to"),
    ],
)
def test_wrong_pairs_are_named(text: str, message: str, tmp_path: Path) -> None:
    path, out = tmp_path / "pairs.jsonl", tmp_path / "weights.json"
    path.write_text(text)
    with pytest.raises(SetupError, match=message):
        main(arguments(path, out))
    assert not out.exists()


def test_long_texts_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs: Path
) -> None:
    pairs.write_text(
        pairs.read_text() + json.dumps({"before": "a", "after": "b c\n" * 20_000}) + "\n"
    )
    assert main(arguments(pairs, tmp_path / "weights.json", "--rounds", "1")) == 0
    assert "1 requests are left out" in capsys.readouterr().out
