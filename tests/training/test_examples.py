"""Data of training runs: lines that become examples, and counted continuations."""

import json
from itertools import islice
from pathlib import Path

import pytest

from optimist_aligner.model.common import read_continuations
from optimist_common.errors import SetupError
from optimist_training.data.examples import Data, Example, batch_of, batches
from optimist_training.drafters.command import main

MODEL = "models/tiny-edit"


def write(path: Path, *records: object) -> str:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def test_each_kind_of_line_becomes_prompt_and_completion(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x = 1"}]
    text = {"prompt": "<|user|>Hi<|end|><|assistant|>\n\n", "completion": "x = 1"}
    name = write(tmp_path / "data.jsonl", {"messages": messages}, text, {"token_ids": [7, 8, 9]})
    data = Data(name, MODEL, 0, 2048)
    chat, plain = sorted(islice(data.training(), 2), key=str)
    assert chat == plain
    assert chat.token_ids[-1] == 3
    assert data.unseen() == [Example([7, 8, 9], 1)]
    # The token before answers.
    assert data.answer_id() == 2


def test_the_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    records = [{"token_ids": [number, 1], "num_prompt_tokens": 1} for number in range(40)]
    name = write(tmp_path / "data.jsonl", *records)

    def order(seed: int) -> list[int]:
        return [one.token_ids[0] for one in islice(Data(name, MODEL, seed, 9).training(), 80)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    unseen = [one.token_ids[0] for one in Data(name, MODEL, 1, 9).unseen()]
    assert unseen == [19, 39]
    assert not set(unseen) & set(order(1))


def test_lines_of_no_known_kind_and_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    for line in ('{"prompt": "x"}', "[1]", "not json", '{"token_ids": []}'):
        path.write_text(line + '\n{"token_ids": [1, 2]}\n')
        with pytest.raises(SetupError, match=r"^--data: .*, line 1 is no"):
            next(Data(str(path), MODEL, 0, 9).training())
    with pytest.raises(SetupError, match="is no file"):
        Data(str(tmp_path / "nowhere"), MODEL, 0, 9)
    with pytest.raises(SetupError, match="fewer than two lines"):
        Data(write(tmp_path / "empty.jsonl"), MODEL, 0, 9)


def test_batches_hold_no_more_tokens_than_asked_and_no_example_without_completion() -> None:
    lengths = [5, 9, 3, 3, 30, 4]
    examples = [Example(list(range(length)), 2) for length in lengths]
    examples.insert(2, Example([1, 2], 2))
    found = list(batches(iter(examples), 20))
    assert [tuple(batch.token_ids.shape) for batch in found] == [(2, 9), (2, 3), (1, 30), (1, 4)]
    assert all(batch.token_ids.numel() <= 20 or len(batch.token_ids) == 1 for batch in found)
    # Wanted are the tokens before those of the completion.
    batch = batch_of([Example([1, 2, 3, 4], 2), Example([5, 6], 1)])
    assert batch.wanted.tolist() == [[False, True, True, False], [True, False, False, False]]


TEXTS = [
    {"repo": "a/one", "text": "Let me check the tests\nLet me check the docs"},
    {"repo": "b/two", "text": "Let me check this\nLet me read it"},
    {"repo": "b/two", "text": "secret names secret names secret names secret names"},
]


def arguments(texts: Path, out: Path, *more: str) -> list[str]:
    return ["continuations", "--texts", str(texts), "--out", str(out), *more]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return Path(write(tmp_path / "texts.jsonl", *TEXTS))


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


def test_files_of_no_use_are_named(tmp_path: Path) -> None:
    path, out = tmp_path / "texts.jsonl", tmp_path / "out.gz"
    with pytest.raises(SetupError, match="--texts: cannot read"):
        main(arguments(path, out))
    path.write_text('{"repo": "a/one", "text": "a b"}\n')
    with pytest.raises(SetupError, match="--texts: nothing is met often enough"):
        main(arguments(path, out))
    path.write_text('{"text": "a b"}\n{"other": 1}\n')
    with pytest.raises(SetupError, match=r"line 2 has no 'text'"):
        main(arguments(path, out))
    with pytest.raises(SetupError, match="--out"):
        main(arguments(path, tmp_path))
    assert not out.exists()
