import pytest

from optimist_common.errors import SetupError
from optimist_common.settings import load_settings
from optimist_proposer.settings import ProposerSettings


def test_defaults() -> None:
    settings = load_settings(ProposerSettings, ["--model", "here"])
    assert (settings.host, settings.port, settings.store) == ("127.0.0.1", 50053, "memory")
    assert (settings.algorithm, settings.window_tokens) == ("auto", 128)
    assert (settings.min_value, settings.request_log) == (0.02, False)
    assert (settings.redis_timeout_ms, settings.state_ttl_seconds) == (50, 600)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model is required"),
        (["--model", "x", "--store", "disk"], "--store: must be memory or a URL"),
        (["--model", "x", "--key-prefix", "a{b}"], "--key-prefix: must not contain braces"),
        (["--model", "x", "--min-value", "1"], "--min-value"),
        (
            ["--model", "x", "--algorithm", "suffix"],
            "--algorithm: Input should be 'auto' or 'line', not 'suffix'",
        ),
        (["--model", "x", "--window-tokens", "1"], "--window-tokens"),
    ],
)
def test_wrong_value_names_its_flag(arguments: list[str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        load_settings(ProposerSettings, arguments)
