import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from optimist_common.errors import SetupError
from optimist_proposer.__main__ import main
from optimist_proposer.core.line import LineAlgorithm
from optimist_proposer.memory import MemoryStore
from optimist_proposer.redis_store import RedisStore
from optimist_proposer.service import build_store, serve
from optimist_proposer.settings import ProposerSettings
from tests.proposer.test_tokenizer import write_tokenizer
from tests.proposer.text import NEWLINES
from tests.stack import free_port


async def test_unreachable_redis_keeps_it_from_starting() -> None:
    settings = ProposerSettings(model="x", store="redis://127.0.0.1:1/0", port=0)
    with pytest.raises(SetupError, match="cannot reach Redis"):
        await serve(settings, NEWLINES)


async def test_port_in_use_keeps_it_from_starting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = ProposerSettings(model="x", port=taken.getsockname()[1])
        with pytest.raises(SetupError, match="Address already in use"):
            await serve(settings, NEWLINES)


async def test_setting_chooses_the_store() -> None:
    algorithm = LineAlgorithm(NEWLINES)
    assert isinstance(build_store(ProposerSettings(model="x"), algorithm), MemoryStore)
    settings = ProposerSettings(model="x", store="redis://127.0.0.1:1/0")
    assert isinstance(build_store(settings, algorithm), RedisStore)


def test_wrong_model_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "/nowhere/at/all"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("optimist proposer: --model: no directory /nowhere/at/all")
    assert output.count("\n") == 1


def test_serves_until_sigterm(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "optimist_proposer", "--port", str(port)]
    command += ["--model", write_tokenizer(tmp_path, ["a", "Ċ"])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in output
