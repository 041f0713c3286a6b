"""The worker as a user starts it."""

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from optimist_common.network.health import is_serving
from tests.stack import free_port


def test_serves_until_sigterm(llama_path: Path) -> None:
    port, metrics_port = free_port(), free_port()
    words = ["--model", str(llama_path), "--num-threads", "1", "--kv-memory-mib", "1"]
    words += ["--port", str(port), "--metrics-port", str(metrics_port)]
    words += ["--cost-seconds", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "optimist_worker", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while not is_serving(f"127.0.0.1:{port}", 1.0):
            assert process.poll() is None
            assert time.monotonic() < deadline
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
            metrics = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert "optimist_worker_step_seconds" in metrics
    assert "0.2 million parameters in float32 on cpu, 64 blocks of 16 tokens" in log
    assert "a pass of 1 token takes" in log
    assert f"serving on 127.0.0.1:{port}" in log
