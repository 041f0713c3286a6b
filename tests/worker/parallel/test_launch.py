"""A worker's ranks start on one machine and in pods, and end together; for torchrun see
`test_ranked_workers`."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from optimist_common.columns import from_bytes
from optimist_worker.runner.runner import Runner
from tests.stack import free_port, read_metrics
from tests.worker.call import PROMPT, first_plan, read
from tests.worker.parallel.started_worker import SMALL, WORKER, StartedWorker
from tests.worker.step import generate

PAIR = ("--dtype", "float64", "--tensor-parallel-size", "2")


def start(words: list[str], **variables: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)


async def test_pods_of_a_group_find_each_other_and_a_signal_to_any_ends_all(
    llama_path: Path, llama: Runner
) -> None:
    pods = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    metrics_port = free_port()
    options = ["--dtype", "float64", "--pipeline-parallel-size", "2", "--num-kv-blocks", "0"]
    options += ["--kv-memory-mib", "1", "--master-port", str(free_port())]
    words = [*WORKER, "--model", str(llama_path), *SMALL, *options]
    second = start(words, **pods, LWS_WORKER_INDEX="1")
    options += ["--metrics-port", str(metrics_port)]
    first = StartedWorker(llama_path, *options, **pods, LWS_WORKER_INDEX="0")
    try:
        async with first.stub() as stub:
            call = stub.Execute()
            await call.write(first_plan(1, 0))
            said = from_bytes((await read(call)).token_ids).tolist()
            call.cancel()
        assert said == generate(llama, PROMPT, 1)
        metrics = read_metrics(f"http://127.0.0.1:{metrics_port}/metrics")
        assert metrics["optimist_worker_step_seconds_count"] >= 1
        second.terminate()
        assert first.wait() == 0, first.log
        assert second.wait(60) == 0
    finally:
        first.process.kill()
        second.kill()
        second.communicate()
    # Each of them has the keys and values of its layers.
    assert "in float64 on cpu, 64 blocks of 16 tokens" in first.log
    assert "a pass of 1 token takes" in first.log
    assert first.log.count(f"serving on {first.address}") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_that_have_not_joined_yet_end_with_their_starter(
    llama_path: Path, number: signal.Signals
) -> None:
    words = [*WORKER, "--model", str(llama_path), *PAIR, "--port", str(free_port())]
    starter = start(words)
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
    while len(children.read_text().split()) < 2:
        time.sleep(0.01)
    starter.send_signal(number)
    # Ends when nobody holds the pipe any more.
    starter.communicate(timeout=60)
    assert starter.returncode != 0


def test_what_keeps_ranks_from_starting_is_said_once(llama_path: Path) -> None:
    words = [*WORKER, "--model", str(llama_path), *PAIR, "--max-model-len", "5000"]
    starter = start([*words, "--port", str(free_port())])
    said = starter.communicate(timeout=100)[1].decode()
    assert starter.returncode == 2
    assert said.count("optimist worker: ") == 1, said
    assert "--max-model-len: 5000 is more than the 1024 positions" in said
