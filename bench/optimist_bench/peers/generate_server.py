"""`generate` as a server: as much of OpenAI's API as a streaming chat request needs.

`python -m optimist_bench.peers.generate_server DIRECTORY --dtype float32 --port 8000 [--lookup]`.
"""

import argparse
import json
import queue
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

BATCH_SIZE = 8
GATHER_SECONDS = 0.01
"""How long a batch that is not full waits for requests that come together."""
TokenIds = list[int]
# The fastest of those tried on rewritten files with SmolLM2-135M on two cores (10, 20, 40 tokens).
_LOOKUP = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 4}


def load_weights(directory: str, dtype: str) -> Any:
    """Returns a model for inference, on the CPU.

    Args:
        directory: Of the model.
        dtype: Name of a type of PyTorch, such as bfloat16.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return model.eval().requires_grad_(False)


def pad_left(prompts: list[TokenIds], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and attention mask [num_prompts, longest] of prompts that end together."""
    longest = max(map(len, prompts))
    token_ids = torch.full((len(prompts), longest), pad_token_id)
    mask = torch.zeros((len(prompts), longest), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        token_ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return token_ids, mask


@dataclass(frozen=True)
class Piece:
    """What a request's stream says next."""

    text: str = ""
    num_tokens: int = 0
    """Of the answer so far, its end token included."""
    finish_reason: str | None = None
    """`stop` or `length` in the last piece; `error` if the text says what went wrong."""


@dataclass
class Request:
    """A prompt whose answer is streamed."""

    token_ids: TokenIds
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    """Of the whole batch, if it is the first in it."""
    pieces: "queue.SimpleQueue[Piece]" = field(default_factory=queue.SimpleQueue)


class _Answer:
    """The answer of one row of a batch."""

    def __init__(self, request: Request, tokenizer: Any, end_token_ids: frozenset[int]) -> None:
        self._request = request
        self._tokenizer = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._end_token_ids = end_token_ids
        self._num_tokens = 0
        self._has_ended = False

    def extend(self, token_ids: Sequence[int]) -> None:
        """Streams the text of further tokens; what follows the end is padding."""
        text, reason = "", None
        for token_id in token_ids:
            if self._has_ended:
                break
            self._num_tokens += 1
            text += self._decoder.step(self._tokenizer, token_id) or ""
            if token_id in self._end_token_ids:
                reason = "stop"
            elif self._num_tokens == self._request.max_tokens:
                reason = "length"
            self._has_ended = reason is not None
        if text or reason:
            self._request.pieces.put(Piece(text, self._num_tokens, reason))


class _Streamer(BaseStreamer):  # type: ignore[misc, unused-ignore]
    """Hands each row's new tokens to its answer."""

    def __init__(self, answers: list[_Answer]) -> None:
        self._answers = answers
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompts first, then a token of each row, or several of a single row."""
        if self._is_prompt:
            self._is_prompt = False
        elif len(self._answers) == 1:
            self._answers[0].extend(value.flatten().tolist())
        else:
            for answer, token_id in zip(self._answers, value.tolist(), strict=True):
                answer.extend([token_id])

    def end(self) -> None:
        """Does nothing: each answer knows where it ends."""


class GenerateStream:
    """`model.generate`, greedy, a batch at a time; with prompt lookup one request at a time."""

    def __init__(self, directory: str, dtype: str, batch_size: int, *, with_lookup: bool) -> None:
        """Loads model and tokenizer; raises OSError or ValueError if it cannot."""
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.batch_size = 1 if with_lookup else batch_size
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = load_weights(directory, dtype).to(device)
        self._options: dict[str, Any] = {"use_cache": True, **(_LOOKUP if with_lookup else {})}
        ends = self._model.generation_config.eos_token_id
        self._end_token_ids = frozenset(ends if isinstance(ends, list) else [ends])

    @torch.inference_mode()
    def answer(self, requests: Sequence[Request]) -> None:
        """Answers requests in one batch, padded on the left; each gets a last piece.

        Args:
            requests: All of the same temperature.
        """
        pad_token_id = min(self._end_token_ids)
        token_ids, mask = pad_left([request.token_ids for request in requests], pad_token_id)
        temperature = requests[0].temperature
        sampling: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature > 0:
            torch.manual_seed(requests[0].seed)
            sampling |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
        answers = [_Answer(each, self.tokenizer, self._end_token_ids) for each in requests]
        self._model.generate(
            token_ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            pad_token_id=pad_token_id,
            max_new_tokens=max(request.max_tokens for request in requests),
            streamer=_Streamer(answers),
            **self._options,
            **sampling,
        )


class GenerateServer(ThreadingHTTPServer):
    """Takes requests in threads of their own; the main thread generates."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, engine: GenerateStream, model: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.engine = engine
        self.model = model
        self.waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def generate_forever(self) -> None:
        """Answers whatever waits, a batch at a time."""
        while True:
            batch = self._take_batch()
            for temperature in {request.temperature for request in batch}:
                self._answer([each for each in batch if each.temperature == temperature])

    def _answer(self, batch: list[Request]) -> None:
        try:
            self.engine.answer(batch)
        except Exception as error:
            traceback.print_exc()
            for request in batch:
                request.pieces.put(Piece(f"{type(error).__name__}: {error}", 0, "error"))

    def _take_batch(self) -> list[Request]:
        batch = [self.waiting.get()]
        deadline = time.monotonic() + GATHER_SECONDS
        while len(batch) < self.engine.batch_size:
            try:
                batch.append(self.waiting.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return batch


class _Handler(BaseHTTPRequestHandler):
    """One connection, with one request."""

    server: GenerateServer
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answers /health, and /v1/models."""
        if self.path == "/health":
            self._send_json(HTTPStatus.OK, {})
        elif self.path == "/v1/models":
            model = {"id": self.server.model, "object": "model"}
            self._send_json(HTTPStatus.OK, {"object": "list", "data": [model]})
        else:
            self._send_error(HTTPStatus.NOT_FOUND, f"no such path: {self.path}")

    def do_POST(self) -> None:
        """Streams the answer to a chat request."""
        if self.path != "/v1/chat/completions":
            return self._send_error(HTTPStatus.NOT_FOUND, f"no such path: {self.path}")
        try:
            request = self._read_request()
        except (ValueError, LookupError, TypeError) as error:
            return self._send_error(HTTPStatus.BAD_REQUEST, f"{type(error).__name__}: {error}")
        self.server.waiting.put(request)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in self._events(request):
            self.wfile.write(f"data: {event}\n\n".encode())
        return None

    def _read_request(self) -> Request:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token_ids = self.server.engine.tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_dict=False
        )
        max_tokens, temperature = int(body["max_tokens"]), float(body["temperature"])
        return Request(token_ids, max_tokens, temperature, int(body.get("seed") or 0))

    def _events(self, request: Request) -> Iterator[str]:
        reason = None
        while reason is None:
            piece = request.pieces.get()
            reason = piece.finish_reason
            if reason == "error":
                yield json.dumps({"error": {"message": piece.text}})
                return
            choice = {"index": 0, "delta": {"content": piece.text}, "finish_reason": reason}
            yield json.dumps({"choices": [choice], "model": self.server.model})
        usage = {
            "prompt_tokens": len(request.token_ids),
            "completion_tokens": piece.num_tokens,
            "total_tokens": len(request.token_ids) + piece.num_tokens,
        }
        yield json.dumps({"choices": [], "usage": usage, "model": self.server.model})
        yield "[DONE]"

    def _send_json(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_error(self, status: HTTPStatus, message: str) -> None:
        self._send_json(status, {"error": {"message": message}})

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the library's name)
        """Writes nothing for each request."""


def main() -> None:
    """Loads the model, and serves until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lookup", action="store_true", help="draft by prompt lookup")
    options = parser.parse_args()
    engine = GenerateStream(
        options.directory, options.dtype, BATCH_SIZE, with_lookup=options.lookup
    )
    server = GenerateServer(engine, Path(options.directory).name, options.port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.generate_forever()


if __name__ == "__main__":
    main()
