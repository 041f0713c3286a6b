"""How byte-level tokenizers cut text into words, by the name that a GGUF file gives (`ggml.pre`).

The names, the expressions, and what comes with a name are those of llama.cpp (src/llama-vocab.cpp),
in the form of the tokenizer that they were taken from where llama.cpp has another for want of a
syntax.
"""

from dataclasses import dataclass

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = (rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SIGNS}|\s+(?!\S)",)
_DIGITS_GPT2 = (r"\p{N}", *_GPT2)
_LLAMA3 = (rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}[\r\n]*|{_SPACES}",)
_QWEN2 = (rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SIGNS}[\r\n]*|{_SPACES}",)


def _cased(ending: str, digits: str) -> str:
    """Returns an expression of words whose capitals come first."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{ending}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{ending}"
        rf"|{digits}|{_SIGNS}[\r\n/]*|{_SPACES}"
    )


_GPT4O = (_cased(f"{_ENDINGS}?", r"\p{N}{1,3}"),)
_HAN_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90"
    "-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_BLOOM = (" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",)


@dataclass(frozen=True, slots=True)
class Split:
    """What a tokenizer does with a text before it merges."""

    expressions: tuple[str, ...]
    """Each cuts what the ones before it left, around its matches."""
    ignore_merges: bool = False
    """A word that is a token is not merged."""
    add_bos: bool = False
    """A text begins with the token for it, unless the file says otherwise."""


_SPLITS = {
    Split(_LLAMA3, ignore_merges=True, add_bos=True): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    Split(_LLAMA3, ignore_merges=True): "glm4 glm5",
    Split(_LLAMA3): "dbrx smaug-bpe chatglm-bpe",
    Split(_QWEN2): (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"
    ),
    Split(_GPT2): (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
        "exaone4 mpt olmo jais trillion granite-docling"
    ),
    Split(_DIGITS_GPT2): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    Split((_cased("", r"\p{N}"),), ignore_merges=True, add_bos=True): "tekken",
    Split(_GPT4O): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Split(
        (
            "[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _HAN_HANGUL,
            r"\p{N}+",
        )
    ): "deepseek-llm",
    Split(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")): "deepseek-coder",
    Split((r"[\p{P}\$\+<=>\^~\|]+", *_GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
    Split((*_BLOOM, r"\p{N}")): "viking",
    Split((rf"{_ENDINGS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)): "seed-coder",
}
SPLITS = {name: split for split, names in _SPLITS.items() for name in names.split()}
"""By the file's name for it.

Not here are those of architectures that are not converted, and vocabularies that are not
byte-level or have no merges.
"""
