"""The tokenizer that a GGUF file describes, as the tokenizers library computes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from gguf import TokenType
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from optimist_common.errors import SetupError
from optimist_worker.conversion.files import GgufFile
from optimist_worker.conversion.splits import SPLITS

_PREFIX = "tokenizer.ggml."
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_SPACE = "\u2581"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_READ = {
    *("model", "pre", "tokens", "token_type", "merges", "scores", "add_bos_token"),
    *("add_eos_token", "add_space_prefix", "eot_token_id", "eom_token_id"),
    *(f"{name}_token_id" for name in _SPECIAL.values()),
}
# Tokens for inputs other than a text to go on with, and templates beside the one that is read.
_HARMLESS = {
    *("token_type_count", "add_sep_token", "suppress_tokens"),
    *(
        f"{name}_token_id"
        for name in (
            *("seperator", "separator", "cls", "mask", "prefix", "suffix", "middle"),
            *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
        )
    ),
}
_OFF = {"remove_extra_whitespaces", "precompiled_charsmap", "normalizer.lowercase"}


def read_tokenizer(file: GgufFile) -> Any:
    """Returns a transformers tokenizer with the file's vocabulary, merges, and chat template.

    A byte-level one (`gpt2`) cuts text by the split that the file names, a SentencePiece one
    (`llama`) merges by scores; both as llama.cpp does. Raises SetupError if the file has another
    kind of tokenizer, or something of it is not understood.
    """
    _check_keys(file)
    tokens: list[str] = file.metadata.get(f"{_PREFIX}tokens") or []
    if not tokens or len(set(tokens)) < len(tokens):
        raise _refusal(file, "has no tokens, or one of them twice")
    kind = file.metadata.get(f"{_PREFIX}model")
    if kind == "gpt2":
        backend, add_bos = _byte_level(file, tokens)
    elif kind == "llama":
        backend, add_bos = _sentencepiece(file, tokens), True
    else:
        raise _refusal(file, f"is of a kind that is not converted ({kind})")
    _add_special(backend, file, tokens)
    special = {
        f"{name}_token": token
        for name, stored in _SPECIAL.items()
        if (token := _token(file, tokens, stored)) is not None
    }
    _add_ends(backend, file, special, add_bos)
    tokenizer_class: Any = PreTrainedTokenizerFast
    return tokenizer_class(
        tokenizer_object=backend,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        **special,
    )


def _refusal(file: GgufFile, fault: str) -> SetupError:
    return file.refusal(f"its tokenizer {fault}")


def _check_keys(file: GgufFile) -> None:
    for key, value in file.metadata.items():
        name = key.removeprefix(_PREFIX)
        if name == key:
            known = not key.startswith("tokenizer.") or key.startswith("tokenizer.chat_template")
            known = known or key == "tokenizer.huggingface.json"
        else:
            known = name in _READ or name in _HARMLESS or (name in _OFF and not value)
        if not known:
            raise _refusal(file, f"has {key}, which is not read")


def _token(file: GgufFile, tokens: Sequence[str], name: str) -> str | None:
    key = f"{_PREFIX}{name}_token_id"
    index = file.metadata.get(key)
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise _refusal(file, f"has {len(tokens)} tokens, and {key} {index}")
    return tokens[index]


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    name = file.metadata.get(f"{_PREFIX}pre")
    if name is None:
        raise _refusal(file, f"does not say how it cuts text ({_PREFIX}pre)")
    if name not in SPLITS:
        raise _refusal(file, f"cuts text in a way that is not known ({_PREFIX}pre {name})")
    split = SPLITS[name]
    merges = [tuple(merge.split(" ", 1)) for merge in file.metadata.get(f"{_PREFIX}merges", ())]
    backend = Tokenizer(BPE(_ids(tokens), merges, ignore_merges=split.ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), "isolated") for each in split.expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend, split.add_bos


def _sentencepiece(file: GgufFile, tokens: Sequence[str]) -> Tokenizer:
    scores = file.metadata.get(f"{_PREFIX}scores")
    types = file.metadata.get(f"{_PREFIX}token_type")
    if scores is None or types is None or {len(scores), len(types)} != {len(tokens)}:
        raise _refusal(file, "has no score or no type for each token")
    if not set(_BYTES) <= set(tokens):
        raise _refusal(file, "lacks tokens for single bytes")
    pieces = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind == TokenType.NORMAL
    }
    merges = _merges(file, tokens, pieces)
    unknown = _token(file, tokens, _SPECIAL["unk"])
    backend = Tokenizer(
        BPE(_ids(tokens), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = file.metadata.get(f"{_PREFIX}add_space_prefix", True)
    escape = normalizers.Replace(" ", _SPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), escape]) if prefix else escape
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return backend


def _merges(
    file: GgufFile, tokens: Sequence[str], pieces: dict[str, float]
) -> list[tuple[str, str]]:
    """Returns the pairs that scores say to merge, first ones first."""
    order = {token: index for index, token in enumerate(tokens) if token in pieces}
    merges: list[tuple[str, str]] = generate_merges(order, pieces)
    # Runs of spaces share one score, and grow from the left whatever their order.
    merged = {left + right for left, right in merges if len({*left, *right}) > 1}
    if len({pieces[token] for token in merged}) < len(merged):
        raise _refusal(file, "has tokens of the same score, so that their order is not known")
    return merges


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def _add_special(backend: Tokenizer, file: GgufFile, tokens: Sequence[str]) -> None:
    """Adds tokens that are found whole in a text, before anything is cut."""
    types = file.metadata.get(f"{_PREFIX}token_type") or [TokenType.NORMAL] * len(tokens)
    # llama.cpp knows of these by the model's name; no key says it.
    strips = "phi-3" in (name := file.name.lower()) or "phi3" in name
    kept = {"<unk>", "<s>", "<|endoftext|>"}
    for is_special, kinds in (
        (True, {TokenType.CONTROL, TokenType.UNKNOWN}),
        (False, {TokenType.USER_DEFINED}),
    ):
        added = [
            AddedToken(
                token, special=is_special, normalized=False, rstrip=strips and token not in kept
            )
            for token, kind in zip(tokens, types, strict=True)
            if kind in kinds and token
        ]
        (backend.add_special_tokens if is_special else backend.add_tokens)(added)
    if backend.get_vocab_size() != len(tokens):
        raise _refusal(file, "has tokens that its vocabulary lacks")


def _add_ends(
    backend: Tokenizer, file: GgufFile, special: Mapping[str, str], add_bos: bool
) -> None:
    """Sets the tokens that a text begins and ends with."""
    wanted = {
        "bos_token": file.metadata.get(f"{_PREFIX}add_bos_token", add_bos),
        "eos_token": file.metadata.get(f"{_PREFIX}add_eos_token", False),
    }
    for name, is_wanted in wanted.items():
        if is_wanted and name not in special:
            raise _refusal(file, f"adds a {name} to texts and does not say which")
    begin, end = ([special[name]] if is_wanted else [] for name, is_wanted in wanted.items())
    if begin or end:
        backend.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[*begin, "$A", *end, *begin, "$B:1", *end],
            special_tokens=[(each, backend.token_to_id(each)) for each in {*begin, *end}],
        )
