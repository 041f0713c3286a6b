"""Many clients of one gateway, closed or open loop, in a process of their own."""

import asyncio
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optimist_bench.overload.client import Behaviour, ClientRequest, Outcome, ask

CHAT_TEXT = 1
"""Number of the text that answers chats: the first token of their prompts, `<|user|>`."""
_SHARE_OF_CHATS = 0.5
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
    """Clients that ask again and again (closed loop); 0 for a rate instead."""
    rate: float = 0.0
    """Requests a second, whatever becomes of them (open loop)."""
    slow_share: float = 0.0
    leaving_share: float = 0.0
    seed: int = 0


def make_request(task: LoadTask, rng: random.Random) -> ClientRequest:
    """Draws a request: chat or completion, streamed or whole, predicted or not."""
    is_chat = rng.random() < _SHARE_OF_CHATS
    number = CHAT_TEXT if is_chat else rng.randrange(len(task.texts))
    body: dict[str, Any] = {
        "model": task.model,
        "max_tokens": task.num_tokens,
        "temperature": 0,
        "stream": rng.random() < 0.5,
    }
    if is_chat:
        body["messages"] = [{"role": "user", "content": f"Write function {rng.randrange(1000)}."}]
    else:
        body["prompt"] = [number, *(rng.randrange(4, 200) for _ in range(16))]
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
    end = asyncio.get_running_loop().time() + task.seconds
    if task.num_clients:
        clients = (_ask_until(end, task, rng) for _ in range(task.num_clients))
        return [outcome for outcomes in await asyncio.gather(*clients) for outcome in outcomes]
    return await _ask_at_rate(end, task, rng)


async def _ask_until(end: float, task: LoadTask, rng: random.Random) -> list[Outcome]:
    outcomes = []
    while asyncio.get_running_loop().time() < end:
        outcomes.append(await ask(task.port, make_request(task, rng)))
    return outcomes


async def _ask_at_rate(end: float, task: LoadTask, rng: random.Random) -> list[Outcome]:
    loop = asyncio.get_running_loop()
    due, tasks = loop.time(), []
    while (due := due + rng.expovariate(task.rate)) < end:
        await asyncio.sleep(max(due - loop.time(), 0.0))
        tasks.append(asyncio.create_task(ask(task.port, make_request(task, rng))))
    return await asyncio.gather(*tasks)


def main() -> int:
    """Reads the task as JSON from the input; writes the outcomes to the file that is named."""
    task = LoadTask(**json.load(sys.stdin))
    outcomes = asyncio.run(run(task))
    Path(sys.argv[1]).write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
