"""One peer as a process: `python -m optimist_bench.peers NAME SETUP`, a request a line.

Reads a JSON object with `prompts` and `concurrency` from each line of its standard input and
answers it with one line: `answers` and `seconds`. The first line says that it is ready. Whatever
goes wrong is a line with an `error`.
"""

import importlib
import json
import os
import sys
import time
from typing import Any, TextIO

from optimist_bench.peers.process import Engine, Setup

LOADERS = {
    "generate": "generate.load",
    "prompt_lookup": "generate.load_prompt_lookup",
    "assisted": "generate.load_assisted",
    "continuous_batching": "continuous_batching.load",
    "vllm_cpu": "vllm_cpu.load",
    "ctranslate2": "ctranslate2_generator.load",
    "onnxruntime_genai": "onnxruntime_generator.load",
}


def main(arguments: list[str]) -> int:
    """Answers until its standard input ends; returns the exit code."""
    name, setup = arguments
    # Whatever an engine prints must not end up between the answers.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        module, _, load = LOADERS[name].partition(".")
        loaders = importlib.import_module(f"optimist_bench.peers.{module}")
        engine = getattr(loaders, load)(Setup(**json.loads(setup)))
    except Exception as error:
        _reply(replies, {"error": _reason(error)})
        return 1
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        try:
            _reply(replies, _answer(engine, json.loads(line)))
        except Exception as error:
            _reply(replies, {"error": _reason(error)})
            break
    # Engines keep threads that do not end by themselves.
    os._exit(0)


def _answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    answers = engine.answer(request["prompts"], request["concurrency"])
    return {"answers": answers, "seconds": time.perf_counter() - started}


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
