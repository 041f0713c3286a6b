"""Many clients of one gateway, closed or open loop, in a process of their own."""

import asyncio
import json
import random
import socket
import sys
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any

LONGEST_SECONDS = 300.0
"""What is not answered by then is lost."""
SLOW_BYTES, SLOW_PAUSE_SECONDS = 512, 0.02
"""How a slow reader reads: so much, and then not for so long."""
_SMALL_BUFFER_BYTES = 4096
_END_OF_STREAM = b"data: [DONE]\n\n"
_FIRST_EVENT = b"data: {"
RETRY_SECONDS = 1.0
"""After that a client comes back whose refusal does not say when."""


class Behaviour(StrEnum):
    """What a client does with its answer."""

    READS = "reads"
    SLOW = "slow"
    LEAVES = "leaves"


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asks, and how it behaves."""

    path: str
    key: str
    body: dict[str, Any]
    text: str
    """The right answer."""
    behaviour: Behaviour = Behaviour.READS
    leave_seconds: float = 0.0
    """When a client that leaves does so, unless it has been answered."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended for its client."""

    behaviour: Behaviour
    status: int
    """0 if no complete answer came."""
    seconds: float
    """From the connection's beginning to the last byte."""
    has_left: bool = False
    is_right: bool = False
    """Whether the answer is complete, and the right text."""
    first_seconds: float | None = None
    """To the first token of a streamed answer."""
    retry_after: int | None = None
    """Seconds after which to come back, if a refusal says so; the next in milliseconds."""
    retry_after_ms: int | None = None
    begun: float = 0.0
    """When, in seconds from the beginning of the load."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete HTTP answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def read_reply(data: bytes) -> Reply | None:
    """Parses all that came on a connection; returns None if the answer is not complete."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    status_line, *lines = head.split(b"\r\n")
    pairs = (line.split(b":", 1) for line in lines)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    if headers.get(b"transfer-encoding") == b"chunked":
        whole = _join_chunks(body)
    else:
        whole = body if len(body) == int(headers.get(b"content-length", b"-1")) else None
    return None if whole is None else Reply(int(status_line.split()[1]), headers, whole)


def _join_chunks(data: bytes) -> bytes | None:
    """Returns a chunked body; None if its end is missing."""
    chunks: list[bytes] = []
    start = 0
    while (line_end := data.find(b"\r\n", start)) > 0:
        size = int(data[start:line_end], 16)
        if size == 0:
            return b"".join(chunks)
        start = line_end + 2 + size + 2
        chunks.append(data[line_end + 2 : start - 2])
    return None


def read_text(body: bytes) -> str | None:
    """Returns the text of an answer, whole or in events; None if it has an error or no end."""
    if body.startswith(b"{"):
        answers = [json.loads(body)]
    elif body.endswith(_END_OF_STREAM):
        events = body.removesuffix(_END_OF_STREAM).split(b"\n\n")
        answers = [
            json.loads(event.removeprefix(b"data: "))
            for event in events
            if event and not event.startswith(b":")
        ]
    else:
        return None
    if any("error" in answer for answer in answers):
        return None
    return "".join(map(_choice_text, answers))


def _choice_text(answer: dict[str, Any]) -> str:
    """Returns the text of the one choice of a chunk or an answer of either endpoint."""
    choice = answer["choices"][0]
    message = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
    return message.get("content") or ""


async def ask(port: int, request: ClientRequest) -> Outcome:
    """Asks the gateway on a connection of its own; an answer that is broken off has status 0."""
    started, data, has_left = perf_counter(), bytearray(), False
    first_seconds: float | None = None
    leaves = request.behaviour is Behaviour.LEAVES
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(request.leave_seconds if leaves else LONGEST_SECONDS):
            reader, writer = await _connect(port, request.behaviour)
            writer.write(_encode(request))
            while block := await reader.read(
                SLOW_BYTES if request.behaviour is Behaviour.SLOW else 65536
            ):
                data += block
                if first_seconds is None and _FIRST_EVENT in data:
                    first_seconds = perf_counter() - started
                if request.behaviour is Behaviour.SLOW:
                    await asyncio.sleep(SLOW_PAUSE_SECONDS)
    except TimeoutError:
        has_left = leaves
    except ConnectionError:
        # What has arrived, or has not, shows it.
        pass
    finally:
        if writer is not None:
            writer.transport.abort()
    seconds = perf_counter() - started
    reply = read_reply(bytes(data))
    if reply is None:
        return Outcome(request.behaviour, 0, seconds, has_left=has_left)
    return Outcome(
        request.behaviour,
        reply.status,
        seconds,
        is_right=reply.status == 200 and read_text(reply.body) == request.text,
        first_seconds=first_seconds,
        retry_after=_whole_number(reply, b"retry-after"),
        retry_after_ms=_whole_number(reply, b"retry-after-ms"),
    )


def _whole_number(reply: Reply, header: bytes) -> int | None:
    value = reply.headers.get(header, b"")
    return int(value) if value.isdigit() else None


async def _connect(
    port: int, behaviour: Behaviour
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if behaviour is not Behaviour.SLOW:
        return await asyncio.open_connection("127.0.0.1", port)
    # What it does not read is to wait at the gateway, not in the kernel.
    small = socket.socket()
    small.setblocking(False)
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=small, limit=SLOW_BYTES)
    except BaseException:
        small.close()
        raise


def _encode(request: ClientRequest) -> bytes:
    data = json.dumps(request.body).encode()
    head = (
        f"POST {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Authorization: Bearer {request.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


CHAT_TEXT = 1
"""Number of the text that answers chats: the first token of their prompts, `<|user|>`."""
_LEAVE_SECONDS = (0.01, 1.0)


@dataclass(frozen=True)
class LoadTask:
    """What the process is to do."""

    port: int
    model: str
    texts: list[str]
    """Answers, by the first token of the prompt."""
    num_tokens: int
    """Of each answer."""
    keys: list[str]
    seconds: float
    """How long requests are begun."""
    num_clients: int = 0
    """Clients that ask again and again, after a refusal when it says (closed loop); 0 for a rate
    instead."""
    rate: float = 0.0
    """Requests a second, whatever becomes of them (open loop)."""
    slow_share: float = 0.0
    leaving_share: float = 0.0
    seed: int = 0
    prompt_tokens: int = 17
    share_of_chats: float = 0.5
    share_streamed: float = 0.5

    def prompt(self, number: int) -> list[int]:
        """Returns the prompt of a text: its number, and then what is drawn for it."""
        drawn = random.Random(number)  # noqa: S311
        return [number, *(drawn.randrange(4, 200) for _ in range(self.prompt_tokens - 1))]


def make_request(task: LoadTask, rng: random.Random, share_of_chats: float) -> ClientRequest:
    """Draws a request: chat or completion, streamed or whole, predicted or not."""
    is_chat = rng.random() < share_of_chats
    number = CHAT_TEXT if is_chat else rng.randrange(len(task.texts))
    body: dict[str, Any] = {
        "model": task.model,
        "max_tokens": task.num_tokens,
        "temperature": 0,
        "stream": rng.random() < task.share_streamed,
    }
    if is_chat:
        body["messages"] = [{"role": "user", "content": f"Write function {rng.randrange(1000)}."}]
    else:
        body["prompt"] = task.prompt(number)
    if rng.random() < 0.5:
        body["prediction"] = {"type": "content", "content": task.texts[number]}
    behaviour, drawn = Behaviour.READS, rng.random()
    if drawn < task.slow_share:
        behaviour, body["stream"] = Behaviour.SLOW, True
    elif drawn < task.slow_share + task.leaving_share:
        behaviour = Behaviour.LEAVES
    return ClientRequest(
        path="/v1/chat/completions" if is_chat else "/v1/completions",
        key=rng.choice(task.keys),
        body=body,
        text=task.texts[number],
        behaviour=behaviour,
        leave_seconds=rng.uniform(*_LEAVE_SECONDS),
    )


async def run(task: LoadTask) -> list[Outcome]:
    """Runs all requests to their ends."""
    rng = random.Random(task.seed)  # noqa: S311
    # With the first chat the gateway starts the process that renders templates. It is there before
    # anything is measured, however few requests there is time for.
    if task.share_of_chats:
        await ask(task.port, make_request(task, rng, share_of_chats=1.0))
    begun = asyncio.get_running_loop().time()
    end = begun + task.seconds
    if task.num_clients:
        clients = (_ask_until(begun, end, task, rng) for _ in range(task.num_clients))
        return [outcome for outcomes in await asyncio.gather(*clients) for outcome in outcomes]
    return await _ask_at_rate(end, task, rng)


async def _ask_until(begun: float, end: float, task: LoadTask, rng: random.Random) -> list[Outcome]:
    loop, outcomes = asyncio.get_running_loop(), []
    while (now := loop.time()) < end:
        request = make_request(task, rng, task.share_of_chats)
        outcome = replace(await ask(task.port, request), begun=now - begun)
        outcomes.append(outcome)
        if outcome.status != 200:
            pause = RETRY_SECONDS if outcome.retry_after is None else outcome.retry_after
            await asyncio.sleep(min(pause, max(end - loop.time(), 0.0)))
    return outcomes


async def _ask_at_rate(end: float, task: LoadTask, rng: random.Random) -> list[Outcome]:
    loop = asyncio.get_running_loop()
    due, tasks = loop.time(), []
    while (due := due + rng.expovariate(task.rate)) < end:
        await asyncio.sleep(max(due - loop.time(), 0.0))
        tasks.append(
            asyncio.create_task(ask(task.port, make_request(task, rng, task.share_of_chats)))
        )
    return await asyncio.gather(*tasks)


def main() -> int:
    """Reads the task as JSON from the input; writes the outcomes to the file that is named."""
    task = LoadTask(**json.load(sys.stdin))
    outcomes = asyncio.run(run(task))
    Path(sys.argv[1]).write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
