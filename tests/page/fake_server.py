"""The page before a server that says what a test wants, for what a real one rarely does."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from optimist_gateway.api.page.router import page_router

PREDICTION = "def area(width, height):\n    return width * height\n"


def segment(source: str, text: str, place: tuple[int, int] | None = None) -> dict[str, Any]:
    """Returns a segment as the API words it; every four characters count as a token."""
    data: dict[str, Any] = {"source": source, "text": text, "num_tokens": -(-len(text) // 4)}
    if place:
        data["prediction"] = {"index": 0, "start": place[0], "end": place[1]}
    return data


def repeated(text: str, start: int, message: int = 0) -> dict[str, Any]:
    """Returns a segment that was read from a message of the prompt."""
    return segment("ngram", text) | {
        "prompt": {"message": message, "start": start, "end": start + len(text)}
    }


def chunk(*segments: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """Returns the chunk of one forward pass."""
    choice = {
        "index": 0,
        "delta": {"content": "".join(each["text"] for each in segments)},
        "finish_reason": finish_reason,
        "provenance": list(segments),
    }
    return {"object": "chat.completion.chunk", "choices": [choice], "usage": None}


# A rename: the model says the new name, then the place is found again. Every source has its part.
EDIT = [
    chunk(segment("target", "def")),
    chunk(segment("prediction", " area(", (3, 9)), segment("target", "breadth")),
    chunk(segment("prediction", ", height):\n    return ", (14, 36)), segment("target", "bre")),
    chunk(segment("ngram", "adth")),
    chunk(segment("draft_model", " * "), segment("target", "height")),
    chunk(segment("prediction", "\n", (50, 51)), finish_reason="stop"),
]
EDITED = "def area(breadth, height):\n    return breadth * height\n"
PROMPT = "Rename it.\n\n" + PREDICTION
# The same without a prediction: what the prompt holds is read there.
FROM_PROMPT = [
    chunk(segment("target", "def")),
    chunk(repeated(" area(", 15), segment("target", "breadth")),
    chunk(repeated(", height):\n    return ", 26), segment("target", "bre")),
    chunk(segment("ngram", "adth")),
    chunk(repeated(" * height\n", 53), finish_reason="stop"),
]
HANG = "hang"
"""Says nothing more."""


@dataclass
class FakeServer:
    """Answers every request with `events`; wants `api_key` if it is set."""

    events: list[Any] = field(default_factory=lambda: list(EDIT))
    models: list[str] = field(default_factory=lambda: ["fake"])
    api_key: str = ""
    refusal: tuple[int, dict[str, Any]] | None = None
    may_list: threading.Event = field(default_factory=threading.Event)
    """What the list of models waits for; set unless a test clears it."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """The bodies that came."""

    def start(self) -> None:
        """Listens on a free port of the loopback."""
        self.may_list.set()
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(self._app(), log_config=None, timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()

    def stop(self) -> None:
        """Ends it; connections are closed."""
        self._server.should_exit = True
        self._thread.join()

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(page_router())

        @app.get("/v1/models")
        async def models(request: Request) -> Response:
            while not self.may_list.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            data = [{"id": model, "object": "model"} for model in self.models]
            return self._locked(request) or JSONResponse({"object": "list", "data": data})

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            self.requests.append(await request.json())
            if self.refusal:
                status, error = self.refusal
                return JSONResponse({"error": error}, status)
            return self._locked(request) or StreamingResponse(
                self._stream(), media_type="text/event-stream"
            )

        return app

    def _locked(self, request: Request) -> Response | None:
        if not self.api_key or request.headers.get("authorization") == f"Bearer {self.api_key}":
            return None
        message = "Incorrect API key provided."
        error = {"message": message, "type": "invalid_request_error", "code": "invalid_api_key"}
        return JSONResponse({"error": error}, 401)

    async def _stream(self) -> AsyncIterator[bytes]:
        # A comment, as proxies are kept awake with.
        yield b": keep-alive\n\n"
        for event in self.events:
            if event == HANG:
                await asyncio.sleep(60)
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
            await asyncio.sleep(0.005)
        yield b"data: [DONE]\n\n"
