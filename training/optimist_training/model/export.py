"""Writes the model's directory as `from_pretrained` reads it."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from optimist_training.data.tokenizer import write_tokenizer


def write_model(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Writes weights, configuration and tokenizer.

    Matrices are stored in 16 bits to halve the file, the norms in 32 because the circuit needs
    their ratios exactly. The configuration says that both are computed in float32, and in no
    narrower dtype: the circuit does not work in bfloat16.
    """
    write_tokenizer(tokenizer, directory)
    weights = {
        name: (value if "norm" in name else value.to(torch.float16)).contiguous()
        for name, value in model.state_dict().items()
    }
    file = directory / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)
    config = model.config.to_diff_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "minimum_dtype": "float32",
    }
    config.pop("_name_or_path", None)
    end = model.config.eos_token_id
    generation = {"do_sample": False, "eos_token_id": end, "pad_token_id": end}
    for name, content in (("config", config), ("generation_config", generation)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
