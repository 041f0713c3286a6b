"""What `optimist complete` asks for, and what it shows of the answer."""

from pathlib import Path
from typing import Any

import pytest

from optimist_cli.__main__ import main as optimist
from optimist_cli.complete import (
    CompleteSettings,
    chat_request,
    main,
)
from optimist_common.errors import SetupError
from tests.certificates import issue, make_authority
from tests.cli.fake_gateway import serving

TINY = '{"data": [{"id": "tiny"}]}'


def content(text: str) -> dict[str, str]:
    return {"type": "content", "content": text}


@pytest.mark.parametrize(
    ("file", "predictions", "more", "body"),
    [
        ("x = 1\n", [], {}, {"prediction": content("x = 1\n"), "n": None}),
        ("x = 1\n", [], {"plain": True}, {"prediction": None}),
        ("x = 1\n", ["x = 2\n"], {}, {"prediction": content("x = 2\n")}),
        ("", ["one", "two"], {"n": 3}, {"prediction": [content("one"), content("two")], "n": 3}),
    ],
)
def test_what_is_asked_for(
    tmp_path: Path, file: str, predictions: list[str], more: dict[str, Any], body: dict[str, Any]
) -> None:
    paths = []
    for number, text in enumerate([file, *predictions]):
        paths.append(str(tmp_path / str(number)))
        Path(paths[-1]).write_text(text)
    settings = CompleteSettings(
        instruction="Go.", file=paths[0] if file else "", prediction=paths[1:], **more
    )
    request = chat_request(settings, "m")
    asked = f"Go.\n\n{file}" if file else "Go."
    assert request.messages == [{"role": "user", "content": asked}]
    assert {name: request.body().get(name) for name in body} == body


@pytest.mark.parametrize("flag", ["--file", "--prediction"])
def test_a_missing_file_is_named(tmp_path: Path, flag: str) -> None:
    missing: Any = str(tmp_path / "missing.py")
    settings = CompleteSettings(instruction="Go.", **{flag.removeprefix("--"): missing})
    with pytest.raises(SetupError, match=rf"{flag}.*missing\.py"):
        chat_request(settings, "m")


@pytest.mark.parametrize("url", ["http://user:s3cret@h:abc", "http://user:s3cret@a..b"])
def test_what_is_no_url_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert optimist(["complete", "Go.", "--url", url]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot reach {url.replace('user:s3cret', '***')} " in line


@pytest.mark.parametrize(
    ("models", "event"),
    [("<html>", None), ('{"data": [{}]}', None), (TINY, "text"), (TINY, {"choices": [{}]})],
)
def test_what_is_no_gateway_is_named(
    models: str, event: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving([event], [], models=models) as url:
        assert optimist(["complete", "Go.", "--url", url]) == 2
    error = f"optimist complete: {url} does not answer as a gateway does\n"
    assert capsys.readouterr().err == error


def test_a_key_is_shown_to_a_gateway_that_asks_for_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = {"index": 0, "delta": {"content": "x"}}
    with serving([{"choices": [choice]}], [], api_key="sk-1") as url:
        assert optimist(["complete", "Go.", "--url", url]) == 2
        assert "answered 401" in capsys.readouterr().err
        monkeypatch.setenv("OPTIMIST_COMPLETE_API_KEY", "sk-1")
        assert optimist(["complete", "Go.", "--url", url]) == 0
        assert capsys.readouterr().out == "x\n"
    assert optimist(["complete", "Go.", "--api-key", "sk 1"]) == 2
    assert "--api-key: " in capsys.readouterr().err


def test_the_command_reads_choices_that_are_interleaved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "one,1.py", tmp_path / "two.py"]
    for path in paths:
        path.write_text(path.stem[:3])

    def event(index: int, text: str, reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": {"content": text}, "finish_reason": reason}
        return {"choices": [choice | {"token_ids": [7], "predicted_text_length": 0}]}

    details: dict[str, Any] = {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1}
    details["tokens_by_source"] = {"target": 4, "prediction": 3, "draft_model": 2, "eagle": 1}
    usage = {"choices": [], "usage": {"completion_tokens_details": details}}
    events = [event(1, "right "), event(0, "left", "stop"), event(1, "side", "length"), usage]
    asked: list[Any] = []
    flags = [word for path in paths for word in ("--prediction", str(path))]
    flags += ["--prediction-text", "three, or so"]
    with serving(events, asked) as url:
        assert main([*flags, "--n", "2", "Go.", "--url", f"{url}/v1", "--color", "never"]) == 0
    (body,) = asked
    assert [one["content"] for one in body["prediction"]] == ["one", "two", "three, or so"]
    assert (body["n"], body["model"]) == (2, "tiny")
    shown = capsys.readouterr()
    assert shown.out == "--- choice 1 of 2\nleft\n--- choice 2 of 2\nright side\n"
    assert "3 tokens in " in shown.err
    assert "3 of them predicted (1 predicted ones refused), 2 by draft model, 1 by eagle, " in (
        shown.err
    )
    assert shown.err.endswith("finish: stop, length\n")


def test_a_gateway_with_a_certificate_of_its_own_authority_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = make_authority(tmp_path)
    shown = issue(tmp_path, authority, "gateway", "IP:127.0.0.1")
    with serving([], [], certificate=shown) as url:
        assert optimist(["complete", "Go.", "--url", url, "--ca", str(authority)]) == 0
        assert optimist(["complete", "Go.", "--url", url]) == 2
        assert optimist(["complete", "Go.", "--url", url, "--ca", str(tmp_path / "none")]) == 2
    *_, unknown, missing = capsys.readouterr().err.splitlines()
    assert "CERTIFICATE_VERIFY_FAILED" in unknown
    assert missing.endswith("none: No such file or directory")
