"""A proposer at --log-level debug says how requests are aligned."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optimist.proposer.v1 import proposer_pb2_grpc
from optimist.proposer.v1.proposer_pb2 import Observation, Open, ProposeRequest
from optimist_cli.serve.ports import free_ports
from optimist_common.columns import to_bytes
from optimist_common.network.channel import open_channel
from tests.proposer.text import write_tokenizer
from tests.stack import Process

VOCABULARY = ["Ċ", "Ġ", *"abcdefghijklmnopqrstuvwxyz"]
PREDICTION = "def one\nx is a\ndef two\ny is b\n"


def column(text: str) -> bytes:
    return to_bytes([VOCABULARY.index({"\n": "Ċ", " ": "Ġ"}.get(each, each)) for each in text])


@contextmanager
def proposer(directory: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """Yields the address of a proposer and the file with its log."""
    log = directory / "log"
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "optimist_cli", "proposer", "--port", str(port), *options]
    command += ["--model", write_tokenizer(directory, VOCABULARY)]
    process = Process("proposer", command, f"127.0.0.1:{port}", {}, log)
    process.start()
    process.wait_until_healthy()
    try:
        yield process.address, log
    finally:
        process.stop()


async def follow(address: str, *outputs: str, prediction: str = "", prompt: str = "") -> None:
    """Has a request followed, whose output comes in some pieces."""
    predicted, before = column(prediction), column(prompt)
    opening = Open(request_id="a", predicted_token_ids=predicted, prompt_token_ids=before)
    requests, position = [ProposeRequest(batch=1, opens=[opening])], 0
    for output in outputs:
        new = Observation(request_id="a", position=position, token_ids=column(output))
        requests.append(ProposeRequest(batch=1, observations=[new]))
        position += len(output)
    async with open_channel(address) as channel:
        call = proposer_pb2_grpc.ProposerServiceStub(channel).Propose(iter(requests))
        assert len([response async for response in call]) == len(requests)


async def test_losses_and_windows_are_written(tmp_path: Path) -> None:
    with proposer(tmp_path, "--algorithm", "line", "--log-level", "debug") as (address, log):
        await follow(address, "def o", "ther\n", "def two\ny", " isn", prediction=PREDICTION)
        lines = re.findall(r"DEBUG \S+alignment_log: (.*)", log.read_text())
    assert lines == [
        "request a after 0 tokens, 0 searches: proposes 30 tokens from prediction 1, line 1, "
        "token 1: 'd', chance 1.00 request_id=a",
        "request a after 10 tokens, 1 searches: lost at prediction 1, line 1, token 6: 't' came, "
        "not 'n'; proposes nothing request_id=a",
        "request a after 19 tokens, 2 searches: proposes 6 tokens from prediction 1, line 4, "
        "token 2: ' ', chance 0.90 request_id=a",
        "request a after 23 tokens, 2 searches: lost at prediction 1, line 4, token 5: 'n' came, "
        "not ' '; proposes nothing request_id=a",
    ]


async def test_those_of_the_default_algorithm_too(tmp_path: Path) -> None:
    with proposer(tmp_path, "--log-level", "debug") as (address, log):
        await follow(address, "def one\nx is", " b\ndef two", prediction=PREDICTION)
        await follow(address, "def one\n", "x is a\nd", prompt=PREDICTION)
        text = log.read_text()
    assert "from prediction 1, line 1, token 1: 'd'" in text
    assert "lost at prediction 1, line 2, token 6: 'b' came, not 'a'" in text
    assert "of the prompt: 'x'" in text
