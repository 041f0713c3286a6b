"""`generate` as a server: as much of OpenAI's API as a streaming chat request needs.

`python -m optimist_bench.peers.generate_server DIRECTORY --dtype float32 --port 8000 [--lookup]`.
"""

import argparse
import json
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from optimist_bench.peers.generate_stream import GenerateStream, Piece, Request

BATCH_SIZE = 8
GATHER_SECONDS = 0.01
"""How long a batch that is not full waits for requests that come together."""
MAX_BODY_BYTES = 1 << 20


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
        length = int(self.headers["Content-Length"])
        if not 0 < length <= MAX_BODY_BYTES:
            raise ValueError(f"the body may have at most {MAX_BODY_BYTES} bytes")
        body = json.loads(self.rfile.read(length))
        if body["stream"] is not True:
            raise ValueError("only streamed answers are served")
        token_ids = self.server.engine.tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_dict=False
        )
        max_tokens = int(body["max_tokens"])
        if max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        return Request(
            token_ids, max_tokens, float(body["temperature"]), int(body.get("seed") or 0)
        )

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
