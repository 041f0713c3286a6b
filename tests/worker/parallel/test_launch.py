"""A worker's ranks start alone, below torchrun and in pods, and each takes the others with it."""

import os
import signal
import subprocess
import sys
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


async def first_token(worker: StartedWorker) -> int:
    async with worker.stub() as stub:
        call = stub.Execute()
        await call.write(first_plan(1, 0))
        (token,) = from_bytes((await read(call)).token_ids).tolist()
        call.cancel()
    return int(token)


async def test_torchrun_starts_ranks_and_a_signal_to_any_ends_all(
    llama_path: Path, llama: Runner
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-port", str(free_port()), "-m", "optimist_worker"]
    metrics_port = free_port()
    options = ["--dtype", "float64", "--pipeline-parallel-size", "2", "--num-kv-blocks", "0"]
    options += ["--kv-memory-mib", "1", "--metrics-port", str(metrics_port)]
    worker = StartedWorker(llama_path, *options, command=torchrun)
    try:
        assert await first_token(worker) == generate(llama, PROMPT, 1)[0]
        metrics = read_metrics(f"http://127.0.0.1:{metrics_port}/metrics")
        assert metrics["optimist_worker_step_seconds_count"] >= 1
        os.kill(worker.ranks()[1], signal.SIGTERM)
        assert worker.wait() == 0, worker.log
    finally:
        worker.process.kill()
    # Each of them has the keys and values of its layers.
    assert "in float64 on cpu, 64 blocks of 16 tokens" in worker.log
    assert "a pass of 1 token takes" in worker.log
    assert worker.log.count(f"serving on {worker.address}") == 1


async def test_pods_of_a_group_find_each_other_and_end_together(
    llama_path: Path, llama: Runner
) -> None:
    pods = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    port = ["--master-port", str(free_port())]
    words = [*WORKER, "--model", str(llama_path), *SMALL, *PAIR, *port]
    second = start(words, **pods, LWS_WORKER_INDEX="1")
    first = StartedWorker(llama_path, *PAIR, *port, **pods, LWS_WORKER_INDEX="0")
    try:
        assert await first_token(first) == generate(llama, PROMPT, 1)[0]
        second.kill()
        assert first.wait() == 1
        assert "another rank has ended" in first.log
    finally:
        first.process.kill()
        second.kill()
        second.communicate()


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
