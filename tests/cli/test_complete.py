"""What `optimist complete` asks for, and what it shows of the answer."""

from pathlib import Path

import pytest

from optimist_cli.client import ChatAnswer, ChatChunk
from optimist_cli.complete import CompleteSettings, chat_request, summary, write_answer
from optimist_common.errors import SetupError


def test_a_file_is_asked_about_and_is_the_prediction(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("x = 1\n")
    settings = CompleteSettings(instruction="Change `1` to `2`.", file=str(path))
    request = chat_request(settings, "tiny-edit")
    assert request.messages == [{"role": "user", "content": "Change `1` to `2`.\n\nx = 1\n"}]
    assert request.body()["prediction"] == {"type": "content", "content": "x = 1\n"}


def test_another_prediction_and_none_at_all(tmp_path: Path) -> None:
    code, other = tmp_path / "code.py", tmp_path / "other.py"
    code.write_text("x = 1\n")
    other.write_text("x = 2\n")
    both = CompleteSettings(instruction="Go.", file=str(code), prediction=str(other))
    assert chat_request(both, "m").prediction == "x = 2\n"
    plain = CompleteSettings(instruction="Go.", file=str(code), plain=True)
    assert "prediction" not in chat_request(plain, "m").body()
    assert "prediction" not in chat_request(CompleteSettings(instruction="Go."), "m").body()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.py")
    with pytest.raises(SetupError, match=r"missing\.py"):
        chat_request(CompleteSettings(instruction="Go.", file=missing), "m")


def test_predicted_text_is_green(capsys: pytest.CaptureFixture[str]) -> None:
    chunks = [ChatChunk("ab", [1, 2], 2), ChatChunk("cd", [3, 4], 1), ChatChunk("e", [5], 0)]
    assert write_answer(ChatAnswer(iter(chunks)), coloured=True) == 5
    assert capsys.readouterr().out == "\x1b[32mab\x1b[0m\x1b[32mc\x1b[0mde\n"
    write_answer(ChatAnswer(iter(chunks)), coloured=False)
    assert capsys.readouterr().out == "abcde\n"


def test_the_summary_tells_what_the_prediction_was_worth() -> None:
    answer = ChatAnswer(iter(()), finish_reason="stop")
    answer.usage = {
        "completion_tokens_details": {
            "accepted_prediction_tokens": 7,
            "rejected_prediction_tokens": 2,
        }
    }
    assert summary(answer, 9, 0.5) == (
        "9 tokens in 0.50 s, 7 of them predicted (2 predicted ones refused), finish: stop"
    )


def test_the_summary_tells_of_other_drafts_and_of_acceptance_by_chance() -> None:
    answer = ChatAnswer(iter(()), finish_reason="stop", system_fingerprint="synthetic-acceptance")
    sources = {"target": 4, "prediction": 1, "draft_model": 3, "eagle": 2}
    answer.usage = {"completion_tokens_details": {"tokens_by_source": sources}}
    assert summary(answer, 10, 0.5) == (
        "10 tokens in 0.50 s, 0 of them predicted (0 predicted ones refused), 3 by draft model, "
        "2 by eagle, finish: stop [synthetic-acceptance]"
    )
