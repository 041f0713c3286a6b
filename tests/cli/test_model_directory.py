"""GGUF files that `optimist serve` converts, once each."""

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from optimist_cli.serve.model_directory import find_directory
from optimist_common.errors import SetupError
from tests.checkpoints import tiny_checkpoint
from tests.worker.conversion.tiny_gguf import write_gguf


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTIMIST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def kept(home: Path) -> list[Path]:
    return list(home.glob("models/*/*"))


async def test_a_file_is_converted_once_by_its_content(home: Path, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path, "llama")
    model = LlamaForCausalLM.from_pretrained(source, use_safetensors=True, trust_remote_code=False)
    file = write_gguf(tmp_path / "Some.Name.GGUF", model)
    said: list[str] = []
    directory = Path(await find_directory(str(file), said.append))
    assert directory.name == "Some.Name"
    assert home in directory.parents
    assert (directory / "model.safetensors").is_file()
    assert len(said) == 1
    assert await find_directory(str(file), said.append) == str(directory)
    assert len(said) == 1

    # Another file of that name, which is cut short.
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SetupError, match=r"^--model: \S*Some.Name.GGUF is truncated or damaged"):
        await find_directory(str(file), said.append)
    assert len(said) == 2
    assert len(kept(home)) == 1


async def test_a_split_file_is_found_by_all_its_parts(home: Path, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path, "llama")
    model = LlamaForCausalLM.from_pretrained(source, use_safetensors=True, trust_remote_code=False)
    write_gguf(tmp_path / "Some.gguf", model, split_max_tensors=20)
    first, second = (tmp_path / f"Some-0000{number}-of-00002.gguf" for number in (1, 2))
    directory = Path(await find_directory(str(first), print))
    assert directory.name == "Some"
    assert await find_directory(str(second), print) == str(directory)
    second.unlink()
    with pytest.raises(SetupError, match=r"^--model: cannot read \S*.gguf: No such file"):
        await find_directory(str(first), print)


async def test_other_models_are_left_to_the_services(tmp_path: Path) -> None:
    assert await find_directory("some/model", print) == "some/model"
    with pytest.raises(SetupError, match=r"^--model: cannot read none.gguf: No such file"):
        await find_directory("none.gguf", print)
    missing = str(tmp_path / "missing")
    # Not in a checkout, and outside of one.
    for model in (missing, "models/missing", "tiny-edit", "../models/tiny-edit"):
        with pytest.raises(SetupError, match=r"^--model: \S* is not there; .* has no models: "):
            await find_directory(model, print)
