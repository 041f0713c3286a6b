"""GGUF files made into model directories, and what is refused or goes wrong."""

import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Stored
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from optimist_common.errors import SetupError
from optimist_worker.conversion.__main__ import main
from optimist_worker.conversion.convert import convert as convert_read
from optimist_worker.conversion.files import new_directory, read_gguf
from optimist_worker.model.model import load_model
from tests.worker.conversion.tiny_gguf import CHAT_TEMPLATE, EOS, EOT, rounded, write_gguf

FILES = {
    *("README.md", "chat_template.jinja", "config.json", "generation_config.json"),
    *("model.safetensors", "tokenizer.json", "tokenizer_config.json"),
}


def convert(path: Path, directory: Path) -> None:
    convert_read(read_gguf(path), directory)


def read_llama(path: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(
        path, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )


@pytest.fixture(scope="module")
def original(llama_path: Path) -> LlamaForCausalLM:
    return read_llama(llama_path)


@pytest.fixture(scope="module")
def file(original: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny.gguf", original)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Path]:
    """Where the directory would be made; nothing may be left there."""
    path = tmp_path / "models"
    path.mkdir()
    yield path
    assert list(path.iterdir()) == []


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (Stored.F32, torch.float32),
        (Stored.F16, torch.float16),
        (Stored.Q4_0, torch.bfloat16),
    ],
)
def test_a_converted_model_has_the_logits_of_its_file(
    stored: Stored, dtype: torch.dtype, llama_path: Path, tmp_path: Path
) -> None:
    expected = read_llama(llama_path)
    path = write_gguf(tmp_path / "file.gguf", expected, matrices=stored)
    convert(path, tmp_path / "made")
    with torch.inference_mode():
        for parameter in expected.parameters():
            parameter.copy_(rounded(parameter, stored))
        token_ids = torch.arange(6, 60)[None]
        converted = read_llama(tmp_path / "made")
        assert torch.equal(converted(token_ids).logits, expected(token_ids).logits)
    assert converted.config.dtype == torch.float32
    auto_model: Any = AutoModelForCausalLM
    own = auto_model.from_pretrained(
        tmp_path / "made", dtype="auto", use_safetensors=True, trust_remote_code=False
    )
    assert own.dtype == dtype


def test_a_converted_model_is_served_with_its_tokenizer_and_stop_tokens(
    file: Path, tmp_path: Path
) -> None:
    # What lies beside the file is not of its model.
    beside = Path(shutil.copy(file, tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "other"}')
    made = tmp_path / "made"
    convert(beside, made)
    assert {path.name for path in made.iterdir()} == FILES
    assert {path.stat().st_mode & 0o444 for path in made.iterdir()} == {0o444}
    assert "license: apache-2.0" in (made / "README.md").read_text()
    assert load_model(str(made), "auto", "cpu").eos_token_ids == [EOS, EOT]
    tokenizer = AutoTokenizer.from_pretrained(made, trust_remote_code=False)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    text = "tabs\t and ünïcode\n\n 12 cabs"
    token_ids = tokenizer.encode(text)
    assert tokenizer.decode(token_ids) == text
    assert len(token_ids) == len(text.encode()) - 2


def test_files_that_are_not_whole_are_refused(file: Path, tmp_path: Path, parent: Path) -> None:
    content, cut = file.read_bytes(), tmp_path / "cut.gguf"
    for size in (5, 40, 2000, len(content) - 1):
        cut.write_bytes(content[:size])
        with pytest.raises(SetupError, match=r"^\S*cut.gguf is truncated or damaged: .*$"):
            convert(cut, parent / "made")
    cut.write_bytes(b"GGML" + content[4:])
    with pytest.raises(SetupError, match=r"cut.gguf is not a GGUF file$"):
        convert(cut, parent / "made")
    with pytest.raises(SetupError, match=r"^cannot read \S*none.gguf: No such file or directory$"):
        convert(tmp_path / "none.gguf", parent / "made")


def test_architectures_that_are_not_known_are_refused(
    original: LlamaForCausalLM, tmp_path: Path, parent: Path
) -> None:
    path = write_gguf(tmp_path / "other.gguf", original, architecture="nonesuch")
    with pytest.raises(SetupError, match=r"\(nonesuch\) cannot be converted: this architecture is"):
        convert(path, parent / "made")


def test_weights_that_are_missing_or_have_another_shape_are_named(
    original: LlamaForCausalLM, tmp_path: Path, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = {
        "num_hidden_layers": r"lacks 9 weights, such as model.layers.4.",
        "vocab_size": "has 2 weights whose shapes are not those of its meta",
    }
    for name, refusal in refusals.items():
        with monkeypatch.context() as patch:
            patch.setattr(original.config, name, getattr(original.config, name) + 1)
            path = write_gguf(tmp_path / f"{name}.gguf", original)
        with pytest.raises(SetupError, match=refusal):
            convert(path, parent / "made")


def test_a_disk_without_space_leaves_nothing(file: Path, parent: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The config still fits, the weights do not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(SetupError, match=r"^cannot write \S*made: .*[Ff]ile too large.*$"):
            convert(file, parent / "made")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_interrupted_conversion_leaves_nothing(parent: Path) -> None:
    def write() -> None:
        with new_directory(parent / "made") as partial:
            (partial / "config.json").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()


def test_two_conversions_do_not_mix(tmp_path: Path) -> None:
    made = tmp_path / "made"
    exists = pytest.raises(SetupError, match="made exists already")
    with exists, new_directory(made), new_directory(made) as early:
        (early / "early").touch()
    assert [path.name for path in made.iterdir()] == ["early"]
    assert list(tmp_path.iterdir()) == [made]


def test_the_command_takes_a_file_and_a_directory(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the command sets for its process.
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(transformers_logging, "set_verbosity_error", lambda: None)
    assert main([str(file)]) == 2
    assert capsys.readouterr().err == ("optimist convert: --directory is required (see --help)\n")
    assert main([str(file), str(tmp_path / "made")]) == 0
    assert capsys.readouterr().err.endswith("made has the model of Tiny.gguf\n")
    assert main([str(file), str(tmp_path / "made")]) == 2
    assert "exists already" in capsys.readouterr().err
