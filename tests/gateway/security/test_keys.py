"""API keys: how they are written, compared and followed."""

import logging
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.errors import SetupError
from optimist_gateway.security import keys as keys_module
from optimist_gateway.security.keys import MAX_KEYS, ApiKey, Keys, KeySource, find_key, parse_keys

SECRET = "sk-abc-123"
DIGEST = sha256(SECRET.encode()).hexdigest()


@pytest.mark.parametrize("line", [f"ann:{SECRET}", f"ann:{DIGEST}", f"  ann : {DIGEST.upper()} "])
def test_a_key_is_found_by_its_secret_alone(line: str) -> None:
    keys = parse_keys(["# comment", "", "bob:other", line])
    found = find_key(keys, SECRET.encode())
    assert found == ApiKey("ann", sha256(SECRET.encode()).digest())
    for wrong in (b"", DIGEST.encode(), b"sk-abc-12", b"sk-abc-1234", SECRET.upper().encode()):
        assert find_key(keys, wrong) is None


def test_a_key_without_a_name_is_called_by_its_digest() -> None:
    for line in (SECRET, DIGEST):
        (key,) = parse_keys([line])
        assert key.name == f"key-{DIGEST[:8]}"


@pytest.mark.parametrize(
    ("lines", "number"),
    [(["a:1", "a:2"], 2), (["ok:1", ":secret"], 2), (["name:"], 1), ([f"x:{'k' * 600}"], 1)],
)
def test_wrong_lines_are_named_by_number_and_not_shown(lines: list[str], number: int) -> None:
    with pytest.raises(ValueError, match=f"line {number}") as caught:
        parse_keys(lines)
    assert "secret" not in str(caught.value)


def test_there_are_not_too_many_keys() -> None:
    with pytest.raises(ValueError, match=str(MAX_KEYS)):
        parse_keys(f"name-{number}:key" for number in range(MAX_KEYS + 1))


@given(st.binary(max_size=600))
def test_nothing_else_is_a_key(secret: bytes) -> None:
    found = find_key(parse_keys([f"ann:{SECRET}"]), secret)
    assert (found is not None) is (secret == SECRET.encode())


def followed(path: Path, monkeypatch: pytest.MonkeyPatch, listed: tuple[str, ...] = ()) -> Keys:
    monkeypatch.setattr(keys_module, "CHECK_SECONDS", 0.0)
    return Keys([KeySource("--api-keys", listed, str(path))])


def test_a_file_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text("ann:first-key\n")
    keys = followed(path, monkeypatch)
    first = keys.find(b"first-key")
    assert first is not None
    assert (first.name, first.is_admin, first.competes) == ("ann", False, False)
    path.write_text("ann:second-key\nbob:third-key\n")
    assert keys.find(b"first-key") is None
    second = keys.find(b"second-key")
    assert second is not None
    assert second.competes


def test_a_file_that_becomes_wrong_changes_nothing_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("ann:first-key\n")
    keys = followed(path, monkeypatch)
    with caplog.at_level(logging.ERROR):
        path.write_text("ann:second-key\nann:third-key\n")
        assert keys.find(b"first-key") is not None
        assert keys.find(b"second-key") is None
    assert "line 2" in caplog.text
    assert "third-key" not in caplog.text
    path.unlink()
    assert keys.find(b"first-key") is not None


def test_a_file_without_keys_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text("")
    keys = followed(path, monkeypatch)
    assert keys.asks_clients
    assert keys.find(b"") is None
    assert not Keys([KeySource("--api-keys", (), "")]).asks_clients


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(SetupError, match=r"--api-keys-file: .*missing"):
        Keys([KeySource("--api-keys", (), missing)])
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(SetupError, match="UTF-8"):
        Keys([KeySource("--api-keys", (), str(binary))])
    with pytest.raises(SetupError, match="twice"):
        Keys(
            [
                KeySource("--api-keys", ("ann:one",), ""),
                KeySource("--admin-keys", ("ann:two",), "", is_admin=True),
            ]
        )
