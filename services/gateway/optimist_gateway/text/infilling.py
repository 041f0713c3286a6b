"""Fill in the middle: prompts for what stands between two texts.

Models that were trained for it know tokens that mark the text before and the text after (Bavarian
et al., "Efficient Training of Language Models to Fill in the Middle", 2022).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# In each prompt of these, the marks precede the prefix, the suffix and the answer.
_PREFIX_FIRST = (
    # Qwen, CodeGemma, Granite 4, Yi-Coder.
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder, Granite Code, StableCode, CodeQwen.
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # SantaCoder.
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    # DeepSeek.
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001
    # Code Llama.
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    # GLM, CodeGeeX.
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
# In each of these, the suffix, the prefix and, where it is marked, the answer.
_SUFFIX_FIRST = (
    # Seed-Coder.
    ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"),
    # Codestral and what else has Mistral's tokenizer.
    ("[SUFFIX]", "[PREFIX]"),
)
# What such models write after the middle, beside the marks and their own end: the end of the text
# they were trained on, padding, or the beginning of another file.
_ENDS = (
    *("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>"),
    *("<fim_pad>", "<fim-pad>", "<file_sep>", "<filename>", "<repo_name>", "<reponame>"),
    *("▁<EOT>", "<|cursor|>", "[MIDDLE]"),
)


@dataclass(frozen=True)
class Infilling:
    """How a model is asked to fill in the middle."""

    marks: tuple[int, ...]
    """Tokens before the first text, before the second and, if there is one, before the answer."""
    is_suffix_first: bool
    end_ids: frozenset[int]
    """Tokens that end an answer."""

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """Returns the tokens of a prompt for what stands between the tokens of two texts."""
        first, second = (suffix, prefix) if self.is_suffix_first else (prefix, suffix)
        before_first, before_second, *before_answer = self.marks
        return [before_first, *first, before_second, *second, *before_answer]


def find_infilling(find_id: Callable[[str], int | None]) -> Infilling | None:
    """Returns how the model of a vocabulary is asked; None if it has no tokens for it.

    `find_id` returns the id of the token of a text, or None.
    """
    for texts in (*_PREFIX_FIRST, *_SUFFIX_FIRST):
        marks = _known(texts, find_id)
        if len(marks) == len(texts):
            ends = frozenset([*marks, *_known(_ENDS, find_id)])
            return Infilling(marks, texts in _SUFFIX_FIRST, ends)
    return None


def _known(texts: Sequence[str], find_id: Callable[[str], int | None]) -> tuple[int, ...]:
    return tuple(token for text in texts if (token := find_id(text)) is not None)
