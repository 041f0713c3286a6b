"""Trains the byte-level BPE tokenizer and writes it with its chat template."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from optimist_training.data.corpus import snippets
from optimist_training.data.edits import edits

VOCABULARY_SIZE = 2048
SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

# A name is cut the same way wherever it is, and newlines and backticks are alone: the model
# counts words, lines and quoted spans.
_PIECES = r"[A-Za-z_]+|[0-9]|\n|`| ?[^\sA-Za-z0-9_`]+ ?| +|\s"

_WIDEST_INDENTATION = 40

# The two newlines that open the answer are like the two that part instruction and code, so that a
# line has the same number in the code and in the answer. The model knows one edit at a time, so
# turns before the last user message are left out.
CHAT_TEMPLATE = """\
{%- set turns = namespace(first=0) -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{%- set turns.first = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' or loop.index0 >= turns.first -%}
{{- '<|' + message['role'] + '|>' -}}
{%- if message['role'] == 'assistant' -%}{{- '\\n\\n' -}}{%- endif -%}
{{- message['content'] + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n\\n' -}}{%- endif -%}
"""


def train_tokenizer(seed: int = 0) -> Tokenizer:
    """Trains the tokenizer on the code of the training split and on instructions."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[SYSTEM, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    for snippet in snippets("train"):
        yield snippet.code
    for edit in islice(edits("train", seed), 7000):
        yield edit.instruction
    # Every indentation becomes one token.
    indentations = list(range(1, _WIDEST_INDENTATION + 1)) * 400
    random.Random(seed).shuffle(indentations)
    for width in indentations:
        yield "\n" + " " * width + "a"


def write_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def end_token(tokenizer: Tokenizer) -> int:
    """Returns the token that ends a turn."""
    token: int | None = tokenizer.token_to_id(END)
    if token is None:
        raise ValueError(f"the tokenizer lacks {END}")
    return token


def prompt_of(messages: Sequence[dict[str, str]]) -> str:
    """Returns the prompt that the chat template makes of messages."""
    turns = [f"<|{turn['role']}|>{turn['content']}{END}" for turn in messages]
    return "".join([*turns, f"{ASSISTANT}\n\n"])
