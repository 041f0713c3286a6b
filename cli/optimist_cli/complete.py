"""`optimist complete`: sends one request and streams the answer, predicted text in colour."""

import sys
import time
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from optimist_cli.client import ChatAnswer, ChatRequest, GatewayClient
from optimist_common.errors import SetupError
from optimist_common.settings import ServiceSettings, load_settings

GREEN, RESET = "\x1b[32m", "\x1b[0m"


class CompleteSettings(ServiceSettings):
    """Sends one request: optimist complete INSTRUCTION [--file FILE] [OPTIONS].

    With --file the file's text follows the instruction and is the prediction of the answer, as an
    edit leaves most of it unchanged. What was predicted is shown in green.
    """

    section: ClassVar[str] = "complete"

    instruction: str = Field(description="what to do; also the first argument")
    file: str = Field("", description="file to edit; its text is the prediction too")
    prediction: str = Field("", description="file with the expected answer, if it is another one")
    plain: bool = Field(False, description="true: attach no prediction")
    url: str = Field("http://127.0.0.1:8000", description="where the gateway listens")
    max_tokens: int = Field(0, ge=0, description="most tokens to generate; 0 is the model's limit")
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="0 is the most likely answer")
    colour: str = Field(
        "auto", pattern="^(auto|always|never)$", description="auto, always or never"
    )


def main(arguments: list[str]) -> int:
    """Runs `optimist complete`; returns the exit code."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--instruction", *arguments]
    settings = load_settings(CompleteSettings, arguments)
    client = GatewayClient(settings.url)
    try:
        started = time.perf_counter()
        answer = client.chat(chat_request(settings, client.model()))
        coloured = settings.colour == "always" or (
            settings.colour == "auto" and sys.stdout.isatty()
        )
        num_tokens = write_answer(answer, coloured=coloured)
        print(summary(answer, num_tokens, time.perf_counter() - started), file=sys.stderr)
    finally:
        client.close()
    return 0


def chat_request(settings: CompleteSettings, model: str) -> ChatRequest:
    """Builds the request: the instruction, the file below it, and the prediction."""
    content, prediction = settings.instruction, None
    if settings.file:
        prediction = _read(settings.file, "--file")
        content = f"{settings.instruction}\n\n{prediction}"
    if settings.prediction:
        prediction = _read(settings.prediction, "--prediction")
    return ChatRequest(
        model=model,
        messages=[{"role": "user", "content": content}],
        prediction=None if settings.plain else prediction,
        max_tokens=settings.max_tokens or None,
        temperature=settings.temperature,
    )


def write_answer(answer: ChatAnswer, *, coloured: bool) -> int:
    """Writes the answer to standard output as it arrives; returns its number of tokens."""
    num_tokens = 0
    for chunk in answer.chunks:
        num_tokens += len(chunk.token_ids)
        predicted = chunk.text[: chunk.predicted_text_length]
        if coloured and predicted:
            predicted = f"{GREEN}{predicted}{RESET}"
        sys.stdout.write(predicted + chunk.text[chunk.predicted_text_length :])
        sys.stdout.flush()
    sys.stdout.write("\n")
    return num_tokens


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
    synthetic = f" [{answer.system_fingerprint}]" if answer.system_fingerprint else ""
    return (
        f"{num_tokens} tokens in {seconds:.2f} s, {accepted} of them predicted "
        f"({details.get('rejected_prediction_tokens', 0)} predicted ones refused){others}, "
        f"finish: {answer.finish_reason}{synthetic}"
    )


def _read(path: str, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{flag}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SetupError(f"{flag}: {path} is not UTF-8 text") from None
