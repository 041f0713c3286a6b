"""Tokenizers of GGUF files: their ids are those that llama.cpp gives for the same file."""

from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from optimist_common.errors import SetupError
from optimist_worker.conversion.files import GgufFile
from optimist_worker.conversion.splits import SPLITS
from optimist_worker.conversion.tokenizer import read_tokenizer
from tests.worker.conversion.tiny_gguf import tokenizer_keys


def sentencepiece() -> dict[str, Any]:
    """Returns the keys of a small vocabulary with scores."""
    pieces = ["▁", "a", "b", "c", "▁▁", "▁▁▁", "ab", "▁ab", "bc", "abc", "▁abc"]
    scores = [-30.0, -31.0, -32.0, -33.0, -1e9, -1e9, -5.0, -7.0, -4.0, -6.0, -8.0]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)
    tokens += ["<think>", *(f"<unused{index}>" for index in range(300 - len(tokens) - 1))]
    types += [TokenType.USER_DEFINED] + [TokenType.CONTROL] * (300 - len(types) - 1)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(each) for each in types],
        "tokenizer.ggml.scores": [0.0] * 259 + scores + [0.0] * (300 - 259 - len(scores)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def read(keys: dict[str, Any]) -> Any:
    metadata = {"general.architecture": "llama", **keys}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    return read_tokenizer(GgufFile(Path("file.gguf"), metadata, {}))


def byte_level(**changes: Any) -> dict[str, Any]:
    return tokenizer_keys(300) | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("smollm starcoder refact command-r exaone", "I|'ll| say| |2|0|2|4|\n\n |1|."),
        ("gpt-2 phi-2 mpt olmo", "I|'ll| say| 2024|\n\n| 1|."),
        ("llama-bpe dbrx glm4 smaug-bpe", "I|'ll| say| |202|4|\n\n| |1|."),
        ("qwen2 megrez stablelm2", "I|'ll| say| |2|0|2|4|\n\n| |1|."),
        ("tekken", "I|'ll| say| |2|0|2|4|\n\n| |1|."),
        ("gpt-4o llama4", "I'll| say| |202|4|\n\n| |1|."),
        ("deepseek-llm", "I|'|ll| say| |2024|\n|\n| |1|."),
        ("deepseek-coder", "I|'|ll| say| |2|0|2|4|\n|\n| |1|."),
    ],
)
def test_text_is_cut_as_the_name_says(names: str, expected: str) -> None:
    for name in names.split():
        cut = read(byte_level(pre=name)).backend_tokenizer.pre_tokenizer
        pieces = [part for part, _ in cut.pre_tokenize_str("I'll say 2024\n\n 1.")]
        shown = "|".join(pieces).replace("Ġ", " ").replace("Ċ", "\n")
        assert shown == expected, name


def test_all_splits_compile_and_keep_every_character() -> None:
    text = "I'll SAY 1234567 <tag>\r\n\r\n\t x  ünï 你好 안녕 ٣ ½ 🙂 'S ca\u0301fe CamelCase...!!"
    for name in SPLITS:
        tokenizer = read(byte_level(pre=name))
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text, name


@pytest.mark.parametrize(
    ("changes", "start", "end"),
    [
        ({"pre": "smollm"}, [], []),
        ({"pre": "llama-bpe"}, [1], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
        ({"pre": "smollm", "add_bos_token": True, "add_eos_token": True}, [1], [2]),
    ],
)
def test_texts_begin_and_end_as_the_file_says(
    changes: dict[str, Any], start: list[int], end: list[int]
) -> None:
    tokenizer = read(byte_level(**changes))
    bare = tokenizer.encode("cab", add_special_tokens=False)
    assert len(bare) == 2
    assert tokenizer.encode("cab") == [*start, *bare, *end]


def test_words_that_are_tokens_are_not_merged_where_the_name_says_so() -> None:
    keys = byte_level(pre="llama-bpe")
    tokens = list(keys["tokenizer.ggml.tokens"])
    tokens[270] = "cab"
    types = list(keys["tokenizer.ggml.token_type"])
    types[270] = int(TokenType.NORMAL)
    keys |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert read(keys).encode("cab") == [1, 270]
    assert len(read(keys | {"tokenizer.ggml.pre": "dbrx"}).encode("cab")) == 2


def test_special_tokens_may_have_any_letters() -> None:
    keys = byte_level(pre="smollm")
    tokens = list(keys["tokenizer.ggml.tokens"])
    types = list(keys["tokenizer.ggml.token_type"])
    tokens[2], tokens[271] = "<\uff5cend\uff5c>", "<think>"
    types[271] = int(TokenType.USER_DEFINED)
    keys |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    tokenizer = read(keys)
    assert tokenizer.encode("<\uff5cend\uff5c><think>") == [2, 271]
    assert len(tokenizer) == 300
    assert tokenizer.decode([2, 271]) == "<\uff5cend\uff5c><think>"
    assert tokenizer.decode([2, 271], skip_special_tokens=True) == "<think>"


# llama.cpp's answers for files with this vocabulary.
SPM_IDS: dict[bool, dict[str, list[int]]] = {
    True: {
        "abc abc": [1, 269, 269],
        "  ab  c": [1, 263, 266, 263, 262],
        "a     b": [1, 259, 260, 264, 263, 261],
        "x é": [1, 259, 123, 259, 198, 172],
        "<think>ab <think> c": [1, 270, 266, 259, 270, 263, 262],
        "aab\nabcab": [1, 259, 260, 265, 13, 268, 265],
        "</s>ab": [1, 2, 266],
    },
    False: {
        "abc abc": [1, 268, 269],
        "  ab  c": [1, 259, 266, 263, 262],
        "a     b": [1, 260, 264, 263, 261],
        "x é": [1, 123, 259, 198, 172],
        "<think>ab <think> c": [1, 270, 265, 259, 270, 259, 262],
        "aab\nabcab": [1, 260, 265, 13, 268, 265],
        "</s>ab": [1, 2, 265],
    },
}


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_has_the_ids_of_llama_cpp(prefix: bool) -> None:
    keys = sentencepiece() | ({} if prefix else {"tokenizer.ggml.add_space_prefix": False})
    tokenizer = read(keys)
    for text, ids in SPM_IDS[prefix].items():
        assert tokenizer.encode(text) == ids, text
        if "<" not in text:
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (byte_level(pre="nonesuch"), "cuts text in a way that is not known .*pre nonesuch"),
        (byte_level(pre=None), "does not say how it cuts text"),
        (byte_level(model="t5"), r"is of a kind that is not converted \(t5\)"),
        (byte_level(nonesuch=1), "has tokenizer.ggml.nonesuch, which is not read"),
        (byte_level(remove_extra_whitespaces=True), "has tokenizer.ggml.remove_extra_white"),
        (byte_level(eos_token_id=300), "has 300 tokens, and tokenizer.ggml.eos_token_id 300"),
        (byte_level(add_bos_token=True, bos_token_id=None), "adds a bos_token .* not say which"),
        (byte_level(tokens=["a", "a"]), "has no tokens, or one of them twice"),
        (sentencepiece() | {"tokenizer.ggml.scores": [-1.0] * 300}, "has tokens of the same score"),
        (sentencepiece() | {"tokenizer.ggml.scores": None}, "has no score or no type for each"),
    ],
)
def test_tokenizers_that_are_not_understood_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(
        SetupError, match=rf"^file.gguf \(llama\) cannot be .*: its tokenizer {reason}"
    ):
        read(keys)
