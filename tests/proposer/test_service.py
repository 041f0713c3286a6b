"""The proposer is put together as its settings say."""

import json
from pathlib import Path

import pytest

from optimist_common.errors import SetupError
from optimist_common.settings import load_settings
from optimist_proposer.service import build_proposer, load_vocabulary
from optimist_proposer.settings import ProposerSettings
from tests.proposer.holding import VOCABULARY, observation, opening
from tests.proposer.text import as_text, write_tokenizer
from tests.redis_server import RedisServer


def settings(**values: object) -> ProposerSettings:
    return ProposerSettings.model_validate({"model": "x", "algorithm": "line", **values})


async def test_replicas_built_from_settings_share_a_redis(redis_server: RedisServer) -> None:
    shared = settings(store=redis_server.url, key_prefix="service", redis_timeout_ms=2000)
    async with build_proposer(shared, VOCABULARY) as first:
        await first.apply([opening("a", "one\ntwo\n")], [observation(0, "X\none\n")], [])
    # What waited to be written was written at the end.
    async with build_proposer(shared, VOCABULARY) as second:
        answer = await second.apply([], [observation(6, "t")], [])
        assert as_text(answer.windows["a"].draft.token_ids) == "wo\n"


async def test_requests_are_logged_where_the_settings_say(tmp_path: Path) -> None:
    async with build_proposer(settings(), VOCABULARY) as silent:
        await silent.apply([opening("a", "one\n")], [], ["a"])
    logged = settings(request_log=True, request_log_dir=str(tmp_path / "log"))
    async with build_proposer(logged, VOCABULARY) as proposer:
        await proposer.apply([opening("a", "one\ntwo\n")], [observation(0, "one\n")], [])
        await proposer.apply([], [observation(4, "X\n")], ["a"])
    (path,) = (tmp_path / "log").iterdir()
    steps = [each for each in map(json.loads, path.read_text().splitlines()) if "step" in each]
    assert [step["position"] for step in steps] == [0, 0, 4]
    assert [step["num_alignments"] for step in steps] == [0, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "disk"], "--store: must be memory or a URL"),
        (["--key-prefix", "a{b}"], "--key-prefix: must not contain braces"),
        (["--algorithm", "suffix"], "should be 'auto' or 'line', not 'suffix'"),
    ],
)
def test_wrong_value_names_its_flag(arguments: list[str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        load_settings(ProposerSettings, ["--model", "x", *arguments])


def test_texts_of_a_vocabulary(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path, ["a", "Ċ", "Ġ", "ĊĠĠ", ";Ċ", "č", "n"])
    vocabulary = load_vocabulary(model)
    assert vocabulary.token_texts == ("a", "\n", " ", "\n  ", ";\n", "\r", "n")
    assert vocabulary.newline_token_ids == {1, 3, 4}


def test_a_vocabulary_without_line_ends_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """WordPiece has none, nor has T5's."""
    vocabulary = load_vocabulary(write_tokenizer(tmp_path, ["a", "b"]))
    assert (vocabulary.token_texts, vocabulary.newline_token_ids) == (("a", "b"), frozenset())
    assert "ends a line" in caplog.text
