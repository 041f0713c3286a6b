"""onnxruntime-genai, with the weights exported to ONNX in float32."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai

from optimist_bench.peers.process import Engine, Setup, TokenIds, in_batches


class OnnxRuntime:
    """`Generator`, a batch at a time, padded on the left."""

    def __init__(self, model: Any, end_token_id: int, max_tokens: int) -> None:
        """Prepares to answer."""
        self._model = model
        self._end_token_id = end_token_id
        self._max_tokens = max_tokens

    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> list[TokenIds]:
        """Answers in batches."""
        return [each for batch in in_batches(prompts, concurrency) for each in self._answer(batch)]

    def _answer(self, batch: list[TokenIds]) -> list[TokenIds]:
        longest = max(map(len, batch))
        token_ids = np.full((len(batch), longest), self._end_token_id, np.int32)
        for row, prompt in enumerate(batch):
            token_ids[row, longest - len(prompt) :] = prompt
        params = onnxruntime_genai.GeneratorParams(self._model)
        params.set_search_options(
            max_length=longest + self._max_tokens, batch_size=len(batch), do_sample=False
        )
        generator = onnxruntime_genai.Generator(self._model, params)
        generator.append_tokens(token_ids)
        while not generator.is_done():
            generator.generate_next_token()
        answers = [generator.get_sequence(row)[longest:].tolist() for row in range(len(batch))]
        end = self._end_token_id
        return [answer[: answer.index(end)] if end in answer else answer for answer in answers]


def load(setup: Setup) -> Engine:
    """Exports the model and loads it; raises RuntimeError if the export fails."""
    with tempfile.TemporaryDirectory() as directory:
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        export = ["-m", setup.model, "-o", directory, "-p", "fp32", "-e", "cpu"]
        done = subprocess.run([*builder, *export], capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"the export failed: {done.stderr.strip().splitlines()[-1]}")
        config = onnxruntime_genai.Config(directory)
        threads = {"intra_op_num_threads": setup.num_threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        model = onnxruntime_genai.Model(config)
        end_token_id = json.loads((Path(directory) / "genai_config.json").read_text())["model"][
            "eos_token_id"
        ]
    return OnnxRuntime(model, end_token_id, setup.max_tokens)
