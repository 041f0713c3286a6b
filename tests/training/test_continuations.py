import json
from pathlib import Path

import pytest

from optimist_aligner.model.common import read_continuations
from optimist_common.errors import SetupError
from optimist_training.drafters.command import main

TEXTS = [
    {"repo": "a/one", "text": "Let me check the tests\nLet me check the docs"},
    {"repo": "b/two", "text": "Let me check this\nLet me read it"},
    {"repo": "b/two", "text": "secret names secret names secret names secret names"},
]


def arguments(texts: Path, out: Path, *more: str) -> list[str]:
    return ["continuations", "--texts", str(texts), "--out", str(out), *more]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TEXTS) + "\n")
    return path


def test_what_several_repositories_say_is_counted(tmp_path: Path, texts: Path) -> None:
    out = tmp_path / "continuations.json.gz"
    assert main(arguments(texts, out)) == 0
    counted = read_continuations(out.read_bytes())
    names = [
        [counted.pieces[row[0]], counted.pieces[row[1]], counted.pieces[row[3]], row[2], row[4]]
        for row in counted.after_two
    ]
    assert ["Let", " me", " check", 4, 3] in names
    assert "secret" not in counted.pieces
    assert counted.counts[counted.pieces.index("Let")] == 4


def test_bounds_decide_what_is_kept(tmp_path: Path, texts: Path) -> None:
    out = tmp_path / "continuations.json.gz"
    assert (
        main(arguments(texts, out, "--least-repos", "1", "--least-count", "1", "--most", "3")) == 0
    )
    counted = read_continuations(out.read_bytes())
    assert len(counted.after_one) == len(counted.after_two) == 3
    assert main(arguments(texts, out, "--least-repos", "1")) == 0
    assert " secret" in read_continuations(out.read_bytes()).pieces
    with pytest.raises(SetupError, match="--texts: nothing is met often enough"):
        main(arguments(texts, out, "--least-count", "100"))
    with pytest.raises(SetupError, match="--most: must be at least 1"):
        main(arguments(texts, out, "--most", "0"))


def test_files_of_no_use_are_named(tmp_path: Path) -> None:
    path, out = tmp_path / "texts.jsonl", tmp_path / "out.gz"
    with pytest.raises(SetupError, match="--texts: cannot read"):
        main(arguments(path, out))
    path.write_text('{"text": "a b"}\n{"other": 1}\n')
    with pytest.raises(SetupError, match=r"line 2 has no 'text'"):
        main(arguments(path, out))
    with pytest.raises(SetupError, match="--out"):
        main(arguments(path, tmp_path))
    assert not out.exists()
