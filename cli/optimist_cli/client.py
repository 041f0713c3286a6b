"""Speaks to a gateway's chat endpoint, for the commands that need an answer."""

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from optimist_common.errors import SetupError
from optimist_common.settings import without_passwords

READ_TIMEOUT_SECONDS = 600.0
_WRONG_SHAPE = (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError)
# A host that is no name is found out when it is looked up.
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
_WRONG_REQUEST = (400, 413, 422)


class RefusedRequestError(SetupError):
    """The server says that this request is wrong; it may answer others."""


@dataclass(frozen=True)
class ChatRequest:
    """One chat request, greedy unless it says otherwise."""

    model: str
    messages: list[dict[str, str]]
    prediction: str | list[str] | None = None
    """The expected answer, or several of them, the most likely one first."""
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    num_choices: int = 1
    cache_salt: str | None = None
    """Only requests of the same salt share cached prompts."""
    return_token_ids: bool = True
    """Whether chunks say their tokens, where the server can."""
    include_speculation: bool = False
    """Whether usage tells what was drafted."""
    schema: Mapping[str, Any] | None = None
    """JSON schema that the answer follows."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions of which the answer has to call some; none if empty."""

    def body(self) -> dict[str, Any]:
        """Returns the JSON body of a streaming request with usage."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self.messages,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.return_token_ids:
            body["return_token_ids"] = True
        if self.prediction is not None:
            body["prediction"] = _prediction(self.prediction)
        for name in ("max_tokens", "seed", "cache_salt"):
            if (value := getattr(self, name)) is not None:
                body[name] = value
        if self.schema is not None:
            schema = {"name": "answer", "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.tools:
            body |= {"tools": list(self.tools), "tool_choice": "required"}
        if self.include_speculation:
            body["include_speculation"] = True
        if self.num_choices > 1:
            body["n"] = self.num_choices
        return body


def _prediction(prediction: str | list[str]) -> dict[str, str] | list[dict[str, str]]:
    if isinstance(prediction, str):
        return {"type": "content", "content": prediction}
    return [{"type": "content", "content": text} for text in prediction]


@dataclass(frozen=True)
class ChatChunk:
    """One piece of one choice of a streamed answer."""

    text: str
    """Of calls the names and arguments."""
    token_ids: list[int]
    predicted_text_length: int
    """How many characters of `text`, from the front, were predicted."""
    index: int = 0
    """Of the choice."""


@dataclass
class ChatAnswer:
    """A streamed answer; iterate over `chunks` first, then the rest is known."""

    chunks: Iterator[ChatChunk] = field(repr=False)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    """Why each choice ended, by its index; known once its last chunk is there."""
    usage: dict[str, Any] = field(default_factory=dict)


class GatewayClient:
    """A connection to one gateway.

    Every method raises SetupError with one line when the gateway cannot be reached or refuses.
    """

    def __init__(self, url: str, api_key: str = "", ca: str = "") -> None:
        """Connects when it is first asked.

        Args:
            url: Where the gateway is, with or without `/v1`.
            api_key: The key that it asks for; empty for none.
            ca: PEM file with the authority of its certificate; empty for those of the system.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(READ_TIMEOUT_SECONDS, connect=5.0)
        try:
            self._http = httpx.Client(
                base_url=self._url,
                headers=headers,
                timeout=timeout,
                trust_env=False,
                verify=_trust(ca),
            )
        except httpx.InvalidURL as error:
            raise self._unreachable(error) from None

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def model(self) -> str:
        """Returns the name of the model that the gateway serves."""
        with self._explained():
            response = self._http.get("/v1/models")
            self._require_success(response)
            return str(response.json()["data"][0]["id"])

    def chat(self, request: ChatRequest) -> ChatAnswer:
        """Sends a request; the answer's chunks arrive while they are iterated over."""
        answer = ChatAnswer(iter(()))
        answer.chunks = self._stream(request, answer)
        return answer

    def _stream(self, request: ChatRequest, answer: ChatAnswer) -> Iterator[ChatChunk]:
        """Yields the chunks, and notes in the answer what else its events say."""
        asked = self._http.stream("POST", "/v1/chat/completions", json=request.body())
        with self._explained(), asked as response:
            if response.is_error:
                response.read()
            self._require_success(response)
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise SetupError(f"the answer broke off: {event['error'].get('message', '')}")
                answer.usage = event.get("usage") or answer.usage
                for choice in event.get("choices", []):
                    if choice.get("finish_reason"):
                        answer.finish_reasons[choice["index"]] = choice["finish_reason"]
                    yield _chunk(choice)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises SetupError for what goes wrong in the block."""
        try:
            yield
        except _WRONG_SHAPE:
            url = without_passwords(self._url)
            raise SetupError(f"{url} does not answer as a gateway does") from None
        except _FAILURES as error:
            raise self._unreachable(error) from None

    def _require_success(self, response: httpx.Response) -> None:
        if not response.is_error:
            return
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text[:200]
        url = without_passwords(self._url)
        kind = RefusedRequestError if response.status_code in _WRONG_REQUEST else SetupError
        raise kind(f"{url} answered {response.status_code}: {message}")

    def _unreachable(self, error: Exception) -> SetupError:
        url = without_passwords(self._url)
        return SetupError(f"cannot reach {url} ({error}); is `make up` running there?")


def _trust(ca: str) -> ssl.SSLContext | bool:
    if not ca:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"--ca: cannot read {ca}: {error.strerror or error}") from None


def _chunk(choice: dict[str, Any]) -> ChatChunk:
    delta = choice.get("delta", {})
    calls = [each["function"] for each in delta.get("tool_calls") or ()]
    parts = (call.get(name) or "" for call in calls for name in ("name", "arguments"))
    return ChatChunk(
        text=(delta.get("content") or "") + "".join(parts),
        token_ids=choice.get("token_ids") or [],
        predicted_text_length=choice.get("predicted_text_length") or 0,
        index=choice["index"],
    )
