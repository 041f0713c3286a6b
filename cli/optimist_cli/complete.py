"""`optimist complete`: sends one request and streams the answer, predicted text in colour."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from optimist_cli.client import ChatAnswer, ChatChunk, ChatRequest, GatewayClient
from optimist_common.errors import SetupError
from optimist_common.settings import Repeated, ServiceSettings, load_settings

GREEN, RESET = "\x1b[32m", "\x1b[0m"


class CompleteSettings(ServiceSettings):
    """Sends one request: optimist complete INSTRUCTION [--file FILE] [OPTIONS].

    With --file the file's text follows the instruction and is the prediction of the answer, as an
    edit leaves most of it unchanged. --prediction names another file, --prediction-text is a text;
    each may be given several times. What was predicted is shown in green.
    """

    section: ClassVar[str] = "complete"
    arguments: ClassVar[tuple[str, ...]] = ("instruction",)

    instruction: str = Field(description="what to do")
    file: str = Field("", description="file to edit; its text is the prediction too")
    prediction: Repeated = Field(
        [], description="file with an expected answer instead, the most likely one first"
    )
    prediction_text: Repeated = Field([], description="expected answer, after those of files")
    plain: bool = Field(False, description="attach no prediction")
    url: str = Field("http://127.0.0.1:8000", description="where the gateway listens")
    ca: str = Field(
        "", description="PEM file with the authority of its certificate; empty for the system's"
    )
    api_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        description="key that the gateway asks for; better as OPTIMIST_COMPLETE_API_KEY, as flags "
        "are seen by all users of a machine",
    )
    max_tokens: int = Field(0, ge=0, description="most tokens to generate; 0 is the model's limit")
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="0 is the most likely answer")
    n: int = Field(1, ge=1, description="how many answers to ask for")
    color: Literal["auto", "always", "never"] = Field("auto", description="--colour is the same")


def main(arguments: list[str]) -> int:
    """Runs `optimist complete`; returns the exit code."""
    arguments = [re.sub(r"^--colour(?==|$)", "--color", word) for word in arguments]
    settings = load_settings(CompleteSettings, arguments)
    client = GatewayClient(settings.url, settings.api_key, settings.ca)
    try:
        started = time.perf_counter()
        answer = client.chat(chat_request(settings, client.model()))
        coloured = settings.color == "always" or (settings.color == "auto" and sys.stdout.isatty())
        num_tokens = write_answer(answer, num_choices=settings.n, coloured=coloured)
        print(summary(answer, num_tokens, time.perf_counter() - started), file=sys.stderr)
    finally:
        client.close()
    return 0


def chat_request(settings: CompleteSettings, model: str) -> ChatRequest:
    """Builds the request: the instruction, the file below it, and the prediction."""
    content = settings.instruction
    prediction: str | list[str] | None = None
    if settings.file:
        prediction = _read(settings.file, "--file")
        content = f"{settings.instruction}\n\n{prediction}"
    texts = [_read(path, "--prediction") for path in settings.prediction]
    if texts := [*texts, *settings.prediction_text]:
        prediction = texts if len(texts) > 1 else texts[0]
    return ChatRequest(
        model=model,
        messages=[{"role": "user", "content": content}],
        prediction=None if settings.plain else prediction,
        max_tokens=settings.max_tokens or None,
        temperature=settings.temperature,
        num_choices=settings.n,
    )


def write_answer(answer: ChatAnswer, *, coloured: bool, num_choices: int = 1) -> int:
    """Writes the answer to standard output as it arrives; returns its number of tokens.

    Several choices come one below the other, each under a title.
    """
    num_tokens = 0
    index: int | None = None
    for chunk in _by_choice(answer):
        num_tokens += len(chunk.token_ids)
        if num_choices > 1 and chunk.index != index:
            end = "" if index is None else "\n"
            sys.stdout.write(f"{end}--- choice {chunk.index + 1} of {num_choices}\n")
            index = chunk.index
        _write_chunk(chunk, coloured=coloured)
    sys.stdout.write("\n")
    return num_tokens


def _by_choice(answer: ChatAnswer) -> Iterator[ChatChunk]:
    """Yields the chunks of one choice after those of another; later choices wait for earlier."""
    waiting: dict[int, list[ChatChunk]] = {}
    current = 0
    for chunk in answer.chunks:
        waiting.setdefault(chunk.index, []).append(chunk)
        yield from waiting.pop(current, [])
        while current in answer.finish_reasons:
            current += 1
            yield from waiting.pop(current, [])


def _write_chunk(chunk: ChatChunk, *, coloured: bool) -> None:
    predicted = chunk.text[: chunk.predicted_text_length]
    if coloured and predicted:
        predicted = f"{GREEN}{predicted}{RESET}"
    sys.stdout.write(predicted + chunk.text[chunk.predicted_text_length :])
    sys.stdout.flush()


def summary(answer: ChatAnswer, num_tokens: int, seconds: float) -> str:
    """Returns one line about what the prediction was worth."""
    details = answer.usage.get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens", 0)
    drafted = {
        label: count
        for label, count in (details.get("tokens_by_source") or {}).items()
        if label not in ("target", "prediction")
    }
    others = "".join(f", {count} by {label.replace('_', ' ')}" for label, count in drafted.items())
    return (
        f"{num_tokens} tokens in {seconds:.2f} s, {accepted} of them predicted "
        f"({details.get('rejected_prediction_tokens', 0)} predicted ones refused){others}, "
        f"finish: {', '.join(reason for _, reason in sorted(answer.finish_reasons.items()))}"
    )


def _read(path: str, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{flag}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SetupError(f"{flag}: {path} is not UTF-8 text") from None
