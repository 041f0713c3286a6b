"""CTranslate2, with the weights converted to its format in float32."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter
from transformers import AutoTokenizer

from optimist_bench.peers.process import Engine, Setup, TokenIds, in_batches


class CTranslate2:
    """`Generator.generate_batch`, a batch at a time."""

    def __init__(self, generator: Any, tokenizer: Any, max_tokens: int) -> None:
        """Prepares to answer; the generator takes tokens as text."""
        self._generator = generator
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> list[TokenIds]:
        """Answers in batches."""
        answers: list[TokenIds] = []
        for batch in in_batches(prompts, concurrency):
            results = self._generator.generate_batch(
                [self._tokenizer.convert_ids_to_tokens(prompt) for prompt in batch],
                max_length=self._max_tokens,
                sampling_topk=1,
                include_prompt_in_result=False,
            )
            answers += [list(result.sequences_ids[0]) for result in results]
        return answers


def load(setup: Setup) -> Engine:
    """Converts the model and loads it."""
    with tempfile.TemporaryDirectory() as directory:
        TransformersConverter(setup.model).convert(directory, force=True)
        path = Path(directory) / "config.json"
        config = json.loads(path.read_text())
        # The loader takes no null; these tokens begin nothing that is generated from a prompt.
        missing = dict.fromkeys(("bos_token", "unk_token"), config["eos_token"])
        path.write_text(
            json.dumps(config | {name: config[name] or missing[name] for name in missing})
        )
        generator = ctranslate2.Generator(
            directory,
            device="cpu",
            compute_type="float32",
            inter_threads=1,
            intra_threads=setup.num_threads,
        )
    return CTranslate2(generator, AutoTokenizer.from_pretrained(setup.model), setup.max_tokens)
