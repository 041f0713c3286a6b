import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from optimist_bench.replicas.redis_server import RedisServer
from optimist_common.errors import SetupError
from optimist_proposer.__main__ import main
from optimist_proposer.core.messages import UNKNOWN
from optimist_proposer.service import build_proposer, serve
from optimist_proposer.settings import ProposerSettings
from tests.proposer.holding import VOCABULARY, observation, opening
from tests.proposer.test_tokenizer import write_tokenizer
from tests.proposer.text import as_text
from tests.stack import free_port


def settings(**values: object) -> ProposerSettings:
    return ProposerSettings.model_validate({"model": "x", "algorithm": "line", **values})


async def test_unreachable_redis_keeps_it_from_starting() -> None:
    with pytest.raises(SetupError, match="cannot reach Redis"):
        await serve(settings(store="redis://127.0.0.1:1/0", port=0), VOCABULARY)


async def test_port_in_use_keeps_it_from_starting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SetupError, match="Address already in use"):
            await serve(settings(port=taken.getsockname()[1]), VOCABULARY)


async def test_replicas_built_from_settings_share_a_redis(redis_server: RedisServer) -> None:
    shared = settings(store=redis_server.url, key_prefix="service", redis_timeout_ms=2000)
    async with build_proposer(shared, VOCABULARY) as first:
        await first.apply([opening("a", "one\ntwo\n")], [observation(0, "X\none\n")], [])
    # What waited to be written was written at the end.
    async with build_proposer(shared, VOCABULARY) as second:
        answer = await second.apply([], [observation(6, "t")], [])
        assert as_text(answer.windows["a"].draft.token_ids) == "wo\n"


async def test_memory_shares_nothing() -> None:
    async with build_proposer(settings(), VOCABULARY) as first:
        await first.apply([opening("a", "one\n")], [], [])
    async with build_proposer(settings(), VOCABULARY) as second:
        assert (await second.apply([], [observation(0, "o")], [])).gaps == {"a": UNKNOWN}


async def test_requests_are_logged_where_the_settings_say(tmp_path: Path) -> None:
    async with build_proposer(settings(), VOCABULARY) as silent:
        await silent.apply([opening("a", "one\n")], [], ["a"])
    logged = settings(request_log=True, request_log_dir=str(tmp_path / "log"))
    async with build_proposer(logged, VOCABULARY) as proposer:
        await proposer.apply([opening("a", "one\ntwo\n")], [observation(0, "one\n")], [])
        await proposer.apply([], [observation(4, "X\n")], ["a"])
    (path,) = (tmp_path / "log").iterdir()
    steps = [each for each in map(json.loads, path.read_text().splitlines()) if "step" in each]
    assert [step["position"] for step in steps] == [0, 0, 4]
    assert [step["num_alignments"] for step in steps] == [0, 0, 1]


def test_wrong_model_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A proposer hides it from its process; other tests need it in this one.
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["--model", "/nowhere/at/all"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("optimist proposer: --model: no directory /nowhere/at/all")
    assert output.count("\n") == 1


def test_serves_until_sigterm(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "optimist_proposer", "--port", str(port)]
    command += ["--model", write_tokenizer(tmp_path, ["a", "Ċ"]), "--algorithm", "line"]
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
