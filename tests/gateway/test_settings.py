"""Which models a gateway serves, as flags, variables and files say."""

import json
from pathlib import Path

import pytest

from optimist_common.errors import SetupError
from optimist_common.settings import load_settings
from optimist_gateway.settings import GatewaySettings

FURTHER = {"model": "org/b/", "schedulers": ["127.0.0.1:2"]}


def models(*each: object) -> list[str]:
    return ["--models", json.dumps(each)]


def names(arguments: list[str]) -> dict[str, str]:
    """Returns the models' names by the flags that name them."""
    served = load_settings(GatewaySettings, arguments).served_models()
    return {flag: one.served_name for flag, one in served.items()}


def test_the_first_model_is_that_of_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"--model": "a", "--models[0]": "b"}
    assert names(["--model", "a", *models(FURTHER)]) == both
    assert names(models(FURTHER, {**FURTHER, "name": "c", "schedulers": "127.0.0.1:3"})) == {
        "--models[0]": "b",
        "--models[1]": "c",
    }
    monkeypatch.setenv("OPTIMIST_GATEWAY_MODELS", json.dumps([FURTHER]))
    assert names(["--model", "a"]) == both
    monkeypatch.delenv("OPTIMIST_GATEWAY_MODELS")
    path = tmp_path / "settings.yaml"
    path.write_text("gateway: {model: a, models: [{model: b, schedulers: [127.0.0.1:2]}]}")
    assert names(["--config", str(path)]) == both
    path.write_text("gateway: {model: a, models: [{model: b}]}")
    with pytest.raises(SetupError, match=r"yaml: gateway\.models\[0\]\.schedulers is required$"):
        names(["--config", str(path)])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], r"--model is required \(see --help\)"),
        (["--models", "b"], r"--models: must be a list in JSON .*, not 'b'"),
        (models({"schedulers": ["127.0.0.1:2"]}), r"--models\[0\]\.model is required"),
        (models({**FURTHER, "schedulers": []}), r"--models\[0\]\.schedulers: .*, not \[\]"),
        (models({**FURTHER, "port": 1}), r"--models\[0\]\.port: no such setting"),
        (["--model", "b", *models(FURTHER)], r"--models\[0\]: its name b is that of --model too"),
        (
            ["--model", "a", "--schedulers", "127.0.0.1:2", *models(FURTHER)],
            r"--models\[0\]: its scheduler 127.0.0.1:2 is that of --model too",
        ),
        (
            [*models(FURTHER), "--served-model-name", "c"],
            "--served-model-name: is about --model, which is not given",
        ),
        (
            ["--model", "a", *models({**FURTHER, "schedulers": ["10.0.0.7:2"]})],
            r"--models\[0\]\.schedulers: .*10\.0\.0\.7:2 .*--insecure",
        ),
    ],
)
def test_what_is_wrong_is_named(words: list[str], text: str) -> None:
    with pytest.raises(SetupError, match=f"^{text}") as raised:
        names(words)
    assert "\n" not in str(raised.value)
