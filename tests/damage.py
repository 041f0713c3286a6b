"""Model directories that are damaged, or made to harm, each in one way."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import add_tokenizer, tiny_checkpoint

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST_WEIGHT = "model.layers.0.self_attn.q_proj.weight"


class Damage(NamedTuple):
    """One way, and what is said of it."""

    name: str
    apply: Callable[[Path], object]
    words: str
    """A regular expression of the message: file, key, and what is wrong."""
    needs_class: bool = False
    """Whether only the worker finds it, when it builds the model."""


def make_model(directory: Path) -> Path:
    """Saves a small model that is whole, with a tokenizer and a chat template."""
    path = add_tokenizer(tiny_checkpoint(directory, "llama"))
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    content |= {"chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}
    (path / TOKENIZER_CONFIG).write_text(json.dumps(content))
    return path


def damaged(model: Path, target: Path, damage: Damage) -> Path:
    """Returns a copy of a model with some damage."""
    shutil.copytree(model, target)
    damage.apply(target)
    return target


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Replaces a file."""
    data = content.encode() if isinstance(content, str) else content

    def apply(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        (path / name).write_bytes(data)

    return apply


def change(name: str, **values: Any) -> Callable[[Path], object]:
    """Sets keys of a JSON file; those that are ... are removed."""

    def apply(path: Path) -> None:
        file = path / name
        content = json.loads(file.read_text()) | values
        file.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))

    return apply


def change_model(**values: Any) -> Callable[[Path], object]:
    """Sets keys of the model in tokenizer.json."""

    def apply(path: Path) -> None:
        model = json.loads((path / TOKENIZER).read_text())["model"]
        change(TOKENIZER, model=model | values)(path)

    return apply


def add_to_vocabulary(number: Any) -> Callable[[Path], object]:
    """Adds an entry to tokenizer.json's vocabulary."""

    def apply(path: Path) -> None:
        vocabulary = json.loads((path / TOKENIZER).read_text())["model"]["vocab"]
        change_model(vocab=vocabulary | {"new": number})(path)

    return apply


def make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 10**9)


def replace(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Puts something else than a regular file in the place of one."""

    def apply(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        make(path / name)

    return apply


def without_fast(apply: Callable[[Path], object]) -> Callable[[Path], object]:
    """Puts other files in the place of tokenizer.json."""

    def apply_both(path: Path) -> None:
        (path / TOKENIZER).unlink()
        apply(path)

    return apply_both


def change_weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def apply(path: Path) -> None:
        weights = load_file(path / WEIGHTS)
        edit(weights)
        save_file(weights, path / WEIGHTS, metadata={"format": "pt"})

    return apply


def change_header(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def apply(path: Path) -> None:
        data = (path / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        (path / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return apply


def index(files: Any, **more: Any) -> Callable[[Path], object]:
    """Has an index say in which file each weight is; `shard.safetensors` has all."""

    def apply(path: Path) -> None:
        (path / WEIGHTS).rename(path / "shard.safetensors")
        (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files} | more))

    return apply


def as_pickle(path: Path) -> None:
    torch.save(load_file(path / WEIGHTS), path / "pytorch_model.bin")
    (path / WEIGHTS).unlink()


def fill(number: float, name: str = FIRST_WEIGHT) -> Callable[[Path], object]:
    return change_weights(lambda weights: weights[name].view(-1)[7:8].fill_(number))


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "vocab_size")
NO_SIZES: tuple[Any, ...] = (0, 2**63, 64.5, "64", {}, True)
COUNTS = ("sliding_window", "num_experts")
NO_COUNTS: tuple[Any, ...] = (-1, [1])
TOKENS = ("eos_token_id", "bos_token_id")
NO_TOKENS: tuple[Any, ...] = (2**63, "2", [[2]], [2] * 1025)
NUMBERS = ("rms_norm_eps", "rope_theta")
NO_NUMBERS: tuple[Any, ...] = (0, float("nan"), 1e308, "1", True)
OTHERS: tuple[tuple[str, Any], ...] = (
    *(("layer_types", value) for value in (5, ["full_attention"] * 3, [1, 2, 3, 4])),
    *(("architectures", "LlamaForCausalLM"), ("dtype", "float99"), ("dtype", 5)),
    *(("rope_scaling", "yarn"), ("hidden_act", 5), ("model_type", 5)),
    ("rope_scaling", {"rope_type": "yarn", "factor": 0}),
    ("rope_scaling", {"rope_type": "longrope", "short_factor": ["a"], "long_factor": []}),
    *(("vocab_size", None), ("text_config", 7)),
    ("rope_parameters", {"rope_type": "default", "rope_theta": {}}),
    ("rope_parameters", {"rope_type": "default", "rope_theta": None}),
    *(("rope_parameters", {"full_attention": 5}), ("rope_parameters", {"rope_type": {}})),
    *(("pad_token_id", [2]), ("quantization_config", 5)),
    ("quantization_config", {"quant_method": 5}),
    *(("tie_word_embeddings", "no"), ("initializer_range", "wide"), ("num_key_value_heads", 3)),
)


def _pairs(keys: tuple[str, ...], values: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Returns the first key with all values, and each of the other keys with one of them."""
    others = [(key, values[index % len(values)]) for index, key in enumerate(keys[1:])]
    return [*((keys[0], value) for value in values), *others]


def of_config() -> Iterator[Damage]:
    """Yields wrong values of keys of config.json."""
    groups = ((SIZES, NO_SIZES), (COUNTS, NO_COUNTS), (TOKENS, NO_TOKENS), (NUMBERS, NO_NUMBERS))
    pairs = [pair for keys, values in groups for pair in _pairs(keys, values)]
    for key, value in (*pairs, *OTHERS):
        yield Damage(f"{key}={value!r}", change(CONFIG, **{key: value}), rf"config\.json: {key}")


def of_files(name: str) -> Iterator[Damage]:
    """Yields what may be wrong with any file of JSON."""
    said = {
        "": "is empty",
        "{": "is not JSON: .* at line 1",
        "[]": "is not a JSON object but a list",
        '{"a": 1, "a": 2}': '"a" is there twice',
        '{"a": ' * 100_000: "is nested more than 64 deep",
        '{"a": ' + "[" * 100 + "]" * 100 + "}": "is nested more than 64 deep",
        '{"a": ' + "9" * 5000 + "}": "Exceeds the limit",
        '{"a": NaN}': "a is NaN; it must be a finite number",
    }
    file = name.replace(".", r"\.")
    for content, words in said.items():
        yield Damage(f"{name}: {content[:16]}", write(name, content), rf"{file}:? {words}")
    yield Damage(f"{name}: bytes", write(name, b"{\xff}"), rf"{file} is not UTF-8 text \(byte 1\)")
    kinds: dict[str, Callable[[Path], object]] = {
        "pipe": os.mkfifo,
        "directory": Path.mkdir,
        "loop": lambda path: path.symlink_to(path.name),
        "1 GB": make_large,
    }
    for kind, make in kinds.items():
        words = r"(is not a regular file|cannot be read|has 1000000000 bytes)"
        yield Damage(f"{name}: {kind}", replace(name, make), rf"{file} {words}")


def of_weights() -> Iterator[Damage]:
    """Yields what may be wrong with weight files."""
    others = {"model.embed_tokens.weight": torch.zeros(300, 64)}
    huge = struct.pack("<Q", 10**15)
    lists = ('{"a":[' + "[]," * 2**20 + "[]]}").encode()
    bomb = struct.pack("<Q", len(lists)) + lists
    yield Damage("no weights", lambda path: (path / WEIGHTS).unlink(), r"no \*\.safetensors")
    yield Damage("pickle", as_pickle, r"pytorch_model\.bin is a pickle, which can run code")
    yield Damage("other name", lambda p: (p / WEIGHTS).rename(p / "a.safetensors"), "neither model")
    not_whole = r"model\.safetensors: it is cut short, or not safetensors \(.*\); copy it again"
    yield Damage("empty weights", write(WEIGHTS, b""), r"header too small\); copy it again")
    yield Damage("huge header", write(WEIGHTS, huge + b"{}"), "a header of 1000000000000000 bytes")
    yield Damage(
        "header of lists", write(WEIGHTS, bomb), r"not safetensors \(invalid JSON in header"
    )
    yield Damage("cut", lambda p: os.truncate(p / WEIGHTS, 9000), r"file not fully covered\); copy")
    yield Damage("longer", lambda p: os.truncate(p / WEIGHTS, 10**6), "file not fully covered")
    for key, value in (
        *(("data_offsets", [0, 4]), ("data_offsets", [-4, 16380]), ("data_offsets", [0, 16384])),
        *(("shape", [2**40, 2**40]), ("shape", "64"), ("dtype", "F99")),
    ):

        def edit(header: dict[str, Any], key: str = key, value: Any = value) -> None:
            header[FIRST_WEIGHT][key] = value

        yield Damage(f"header {key}={value}", change_header(edit), not_whole)
    good = {FIRST_WEIGHT: "shard.safetensors"}
    yield Damage(
        "index ../", index({"a": "../a.safetensors"}), r"weight_map\.a is .* beside the in"
    )
    yield Damage("index /", index({"a": "/etc/passwd"}), "beside the index")
    yield Damage("index of numbers", index({"a": 5}), "beside the index")
    yield Damage(
        "index alone", index(good, metadata=[]), r"index\.json: metadata must be an object"
    )
    yield Damage("index of nothing", index({}), "weight_map must be an object")
    yield Damage(
        "no shard", index({"a": "b.safetensors"}), r"b\.safetensors is named by model\.saf"
    )
    yield Damage("not in shard", index(good | {"a": "shard.safetensors"}), "names a, which shard")
    yield Damage("pipe", replace(WEIGHTS, os.mkfifo), r"model\.safetensors is not a regular file")
    yield Damage("loop", replace(WEIGHTS, lambda p: p.symlink_to(p.name)), "cannot be read: Too")
    yield Damage("link", replace(WEIGHTS, lambda p: p.symlink_to("none")), "is a link to nothing")
    yield Damage(
        "vocabulary", change_weights(lambda w: w.update(others)), r"\[300, 64\] .*320", True
    )
    lacking = change_weights(lambda w: w.pop(FIRST_WEIGHT))
    yield Damage("lacking", lacking, rf"lacks 1 weights, such as {FIRST_WEIGHT}", True)
    extra = change_weights(lambda w: w.update({f"{FIRST_WEIGHT[:-6]}bias": torch.zeros(64)}))
    yield Damage(
        "extra", extra, r"q_proj\.bias is a weight that the model of config\.json does", True
    )
    fewer = change(CONFIG, num_hidden_layers=2)
    yield Damage("fewer layers", fewer, "num_hidden_layers is 2, and the weights have more", True)
    more = change(CONFIG, num_hidden_layers=1024)
    yield Damage("more layers", more, "num_hidden_layers is 1024, and the weights have 4 layers")
    experts = {f"model.layers.1.mlp.experts.{n}.down_proj.weight": torch.ones(2, 2) for n in "013"}
    gap = change_weights(lambda w: w.update(experts))
    yield Damage("an expert is missing", gap, r"experts\.2\.down_proj is missing; other experts")
    unlike = {f"model.experts.{n}.up_proj.weight": torch.ones(1 + n, 2) for n in (0, 1)}
    unequal = change_weights(lambda w: w.update(unlike))
    yield Damage("an expert is larger", unequal, r"experts\.[01]\.up_proj\.weight has the shape")
    rounded = change_weights(lambda w: w.update({FIRST_WEIGHT: w[FIRST_WEIGHT].to(torch.int8)}))
    yield Damage(
        "integers", rounded, r"q_proj\.weight is I8, and config\.json has no quantization_c"
    )
    wide = change(CONFIG, intermediate_size=2**22)
    yield Damage("wide", wide, r"config\.json asks for .*intermediate_size is 4194304", True)
    yield Damage("inf", fill(float("inf")), rf"{FIRST_WEIGHT} has 1 values that are not fin", True)
    norm = fill(float("nan"), "model.norm.weight")
    yield Damage("nan in a norm", norm, r"model\.norm\.weight has 1 values", True)


def of_model() -> Iterator[Damage]:
    """Yields models that are not served."""
    yield Damage("no config", lambda path: (path / CONFIG).unlink(), r"there is no config\.json")
    yield Damage("no type", change(CONFIG, model_type=...), r"config\.json: model_type is missing")
    yield Damage(
        "type", change(CONFIG, model_type="frob"), "model_type is 'frob', which transf", True
    )
    yield Damage("act", change(CONFIG, hidden_act="frob"), "hidden_act is 'frob', which", True)
    adapter = write("adapter_config.json", '{"base_model_name_or_path": "a/b"}')
    yield Damage("adapter", adapter, r'adapter_config\.json: it is an adapter of "a/b"; merge')
    hqq = change(CONFIG, quantization_config={"quant_method": "hqq"})
    yield Damage("hqq", hqq, "A valid HQQ version .* is not available", True)


def of_tokenizer() -> Iterator[Damage]:
    """Yields what may be wrong with tokenizers; each takes a process to try."""
    regex = {"type": "Split", "behavior": "Isolated", "invert": False}
    bomb = {"pattern": {"Regex": "(x+x+)+y"}} | regex
    wrong = {"pattern": {"Regex": "(x+"}} | regex
    replacing = {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 10**6}
    growing = {"type": "Sequence", "normalizers": [replacing] * 3}
    cases: dict[str, tuple[Any, str]] = {
        "model": ({"type": "Frob"}, r'cannot read its model \("Frob"\)'),
        "normalizer": ({"type": "Frob"}, r'cannot read its normalizer \("Frob"\)'),
        "pre_tokenizer": (wrong, r'cannot read its pre_tokenizer \("Split"\): Oniguruma error'),
        "decoder": ({"type": "Frob"}, r'cannot read its decoder \("Frob"\)'),
        "post_processor": (5, r"cannot read its post_processor"),
        "added_tokens": ({}, r"added_tokens is an object; it must be a list"),
    }
    for part, (value, words) in cases.items():
        apply = change(TOKENIZER, **{part: value})
        yield Damage(f"tokenizer {part}", apply, rf"tokenizer\.json: .*{words}")
    apply = change(TOKENIZER, pre_tokenizer=bomb)
    yield Damage("regex bomb", apply, r"tokenizer\.json: .*long text")
    apply = change(TOKENIZER, normalizer=growing)
    yield Damage("growing text", apply, r"tokenizer\.json: making tokens of .* takes more than 6 s")
    apply = add_to_vocabulary(2**31)
    yield Damage("token", apply, r'tokenizer\.json: model\.vocab: "new" is .*whole')
    apply = change_model(merges=[["q", "zzz"]])
    yield Damage("merge", apply, r"cannot read its model .*`zzz` out of vocabulary")
    apply = change(TOKENIZER, added_tokens=[{"id": 2**31, "content": "new"}])
    yield Damage("added token", apply, r"tokenizer\.json: added_tokens\[0\]\.id is 2147483648")


def of_tokenizer_config() -> Iterator[Damage]:
    """Yields what may be wrong with tokenizer_config.json and the files beside it."""
    for key, value in (
        *(("eos_token", 5), ("bos_token", ["<s>"]), ("pad_token", {"text": "x"})),
        *(("additional_special_tokens", 5), ("additional_special_tokens", [5])),
        *(("added_tokens_decoder", [5]), ("added_tokens_decoder", {"x": {"content": "y"}})),
        *(("added_tokens_decoder", {str(2**31): {"content": "y"}}), ("tokenizer_class", 5)),
        *(("added_tokens_decoder", {"3": "y"}), ("chat_template", 5), ("chat_template", ["x"])),
        *(("chat_template", [{"name": "a", "template": 5}]), ("chat_template", "x" * 2**21)),
    ):
        apply = change(TOKENIZER_CONFIG, **{key: value})
        yield Damage(f"{key}={str(value)[:50]}", apply, rf"tokenizer_config\.json: {key}")
    link = replace(TOKENIZER_CONFIG, lambda path: path.symlink_to("none"))
    yield Damage("link", link, r"tokenizer_config\.json cannot be read: it is a link to")
    slow = write("tokenizer.model", b"\0\1\xff")
    yield Damage("slow", without_fast(slow), r"tokenizer\.model is a .* neither of")
    for content, package in ((b"\n\5\n\1a", "sentencepiece"), (b"IQ== 0\n", "tiktoken")):
        slow = write("tokenizer.model", content)
        if find_spec(package) is not None:
            continue
        words = rf"no tokenizer\.json, and .* tokenizer\.model takes .*pip install {package}$"
        yield Damage(f"slow {package}", without_fast(slow), words)
    apply = write("chat_template.json", json.dumps({"chat_template": 5}))
    yield Damage("template", apply, r"chat_template\.json: chat_template")
    pipe = replace("chat_template.jinja", os.mkfifo)
    yield Damage("template pipe", pipe, r"chat_template\.jinja is not a regular file")
    apply = write("added_tokens.json", json.dumps({"new": 2**31}))
    yield Damage("added_tokens.json", apply, r'added_tokens\.json: "new" is 2147483648; it must')


def of_generation() -> Iterator[Damage]:
    """Yields what may be wrong with the tokens of generation_config.json."""
    for key, value in _pairs(TOKENS, NO_TOKENS):
        apply = write(GENERATION, json.dumps({key: value}))
        yield Damage(f"{key}={value!r}", apply, rf"generation_config\.json: {key}")
