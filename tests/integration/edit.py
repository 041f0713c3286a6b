"""Asks a running stack for edits through the official client."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

from optimist_training.data.edits import Edit, unseen_edits

MODEL = "tiny-edit"


@dataclass(frozen=True)
class Answer:
    text: str
    token_ids: list[int]
    accepted: int
    rejected: int
    by_source: dict[str, int]
    """Tokens by where they came from."""
    request_id: str = field(compare=False)


def edits(count: int, seed: int = 7) -> list[Edit]:
    return unseen_edits(count, seed)


def connect(url: str) -> OpenAI:
    """Returns a client of a gateway, which asks but once."""
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def predict(*texts: str) -> dict[str, Any]:
    """Returns what a body has of predictions."""
    return {"prediction": [{"type": "content", "content": text} for text in texts]}


def complete(client: OpenAI, messages: Any, **options: Any) -> Any:
    """Returns a whole greedy answer, or a stream of it."""
    # The client's overloads do not accept options that are put together.
    create: Any = client.chat.completions.create
    return create(**{"model": MODEL, "messages": messages, "temperature": 0.0} | options)


def ask(
    client: OpenAI, edit: Edit, prediction: str | None, on_chunk: Any = None, **options: Any
) -> Answer:
    """Streams one edit; `on_chunk` is called with the number of chunks so far."""
    if prediction is not None:
        options["prediction"] = {"type": "content", "content": prediction}
    options |= {"stream": True, "stream_options": {"include_usage": True}}
    options["extra_body"] = {"return_token_ids": True} | options.get("extra_body", {})
    stream = complete(client, edit.messages(), **options)
    text, usage, request_id = "", None, ""
    token_ids: list[int] = []
    for number, chunk in enumerate(stream, 1):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            token_ids += (choice.model_extra or {}).get("token_ids") or []
        usage, request_id = chunk.usage or usage, chunk.id
        if on_chunk is not None:
            on_chunk(number)
    assert usage is not None
    details = usage.completion_tokens_details
    assert details is not None
    assert usage.completion_tokens == len(token_ids)
    return Answer(
        text,
        token_ids,
        details.accepted_prediction_tokens or 0,
        details.rejected_prediction_tokens or 0,
        (details.model_extra or {})["tokens_by_source"],
        request_id,
    )


def ask_together(client: OpenAI, batch: list[Edit]) -> list[Answer]:
    """Asks for all edits at once, for every second one with a prediction."""
    predictions = [edit.before if number % 2 else None for number, edit in enumerate(batch)]
    with ThreadPoolExecutor(len(batch)) as pool:
        return list(pool.map(lambda *pair: ask(client, *pair), batch, predictions))
