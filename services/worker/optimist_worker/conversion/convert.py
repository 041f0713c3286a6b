"""Turns a GGUF file into a directory with safetensors weights and a tokenizer."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AttentionInterface, AutoModelForCausalLM, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from optimist_common.errors import SetupError, one_line
from optimist_common.model_files.tokenizer import explained
from optimist_worker.conversion.config import read_config
from optimist_worker.conversion.files import GgufFile, join, new_directory
from optimist_worker.conversion.rotary import FACTORS
from optimist_worker.conversion.tokenizer import read_tokenizer
from optimist_worker.core.attention.paged_attention import NAME, paged_attention
from optimist_worker.model.fit import finite_fault
from optimist_worker.model.probe import probe_layers
from optimist_worker.model.source import ModelSource

_NAME = "model.gguf"


def convert(file: GgufFile, directory: Path) -> None:
    """Converts a model of an architecture that `read_config` knows and the worker serves.

    The weights are unpacked to float32, which holds every GGUF type exactly. The directory appears
    when it is complete; nothing stays after an error or a signal. Raises SetupError if the weights
    cannot be read, the model cannot be served, or the directory not written.
    """
    try:
        with new_directory(directory) as partial:
            tokenizer = read_tokenizer(file)
            with TemporaryDirectory(dir=partial) as alone:
                # transformers would also read what lies beside the file.
                source = Path(alone) / _NAME
                if len(file.readers) > 1:
                    join(file, source)
                else:
                    source.symlink_to(file.path.absolute())
                model = _read_model(file, source)
            _write(model, tokenizer, file, partial)
    except OSError as error:
        where = error.filename or directory
        raise SetupError(f"cannot write {where}: {error.strerror or one_line(error)}") from None
    except SafetensorError as error:
        raise SetupError(f"cannot write {directory}: {one_line(error)}") from None


def _write(model: Any, tokenizer: Any, file: GgufFile, directory: Path) -> None:
    model.save_pretrained(directory)
    # The weights are float32; this is what a GPU computes in.
    model.config.dtype = file.own_dtype
    model.config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    card = directory / "README.md"
    card.write_text(_card(file), encoding="utf-8")
    for entry in directory.iterdir():
        # safetensors lets nobody else read, such as the user of a container.
        entry.chmod(card.stat().st_mode & 0o777)


def _read_model(file: GgufFile, path: Path) -> Any:
    """Returns the model with float32 weights, checked to run in the worker."""
    auto_model: Any = AutoModelForCausalLM
    with explained(f"{file.path} ({file.architecture}) cannot be converted"):
        config = read_config(file)
        source = ModelSource(str(file.path), "FILE", config)
        source.check()
        # What was loaded from a GGUF file counts as quantised, which save_pretrained refuses.
        with torch.device("meta"):
            model = auto_model.from_config(config, dtype=torch.float32)
        _require_places(file, model)
        loaded, report = auto_model.from_pretrained(
            path.parent,
            gguf_file=path.name,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        _check_weights(file, report)
        state = loaded.state_dict()
        for name in _absent_biases(report):
            state[name].zero_()
        if fault := finite_fault(loaded.named_parameters()):
            raise SetupError(f"{file.path}: {fault}")
        AttentionInterface.register(NAME, paged_attention)
        probe_layers(source, loaded)
        model.load_state_dict(state, assign=True)
        model.tie_weights()
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=file.stop_token_ids or None,
        pad_token_id=file.metadata.get("tokenizer.ggml.padding_token_id"),
    )
    return model


def _require_places(file: GgufFile, model: Any) -> None:
    """Raises SetupError for a tensor that is no weight of the model, which nothing would read."""
    processor_class: Any = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
    processor = processor_class()
    places = get_gguf_hf_weights_map(model, processor)
    # Experts are stored as one weight, which the model has no module for.
    places |= dict.fromkeys([f"{name}.weight" for name in places if name.endswith("_exps")])
    for name in file.tensors:
        if name not in places and name != FACTORS:
            raise file.refusal(f"it has {name}, which is no weight of {model.config.model_type}")


def _absent_biases(report: dict[str, Any]) -> set[str]:
    """Returns biases that are zero, since others of their layers are in the file."""
    return {name for name in report["missing_keys"] if name.endswith("_proj.bias")}


def _check_weights(file: GgufFile, report: dict[str, Any]) -> None:
    missing = sorted(set(report["missing_keys"]) - _absent_biases(report))
    others = sorted(report["mismatched_keys"])
    if missing:
        raise SetupError(f"{file.path} lacks {len(missing)} weights, such as {missing[0]}")
    if others:
        raise SetupError(
            f"{file.path} has {len(others)} weights whose shapes are not those of its metadata, "
            f"such as {others[0][0]}"
        )


def _card(file: GgufFile) -> str:
    """Returns a model card with what the file says about itself."""
    keys = ("name", "organization", "source.url", "license", "architecture")
    rows = {key: file.metadata.get(f"general.{key}") for key in keys}
    lines = [f"- {key.partition('.')[0]}: {value}\n" for key, value in rows.items() if value]
    head = f"# {file.path.stem}\n\nConverted from `{file.path.name}` by `optimist convert`."
    return f"{head} The file says:\n\n{''.join(lines)}"
