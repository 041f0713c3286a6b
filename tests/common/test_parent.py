"""A process that was started ends with its starter, at whatever moment that ends."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells of it")

BEGIN = """
import os, signal, sys, time
from optimist_common.process import end_with_this_process
ask = end_with_this_process(signal.SIGKILL)
"""


def output_of(script: str) -> str:
    """Returns what a script and its descendants print, once all of them have ended."""
    process = subprocess.Popen([sys.executable, "-c", BEGIN + script], stdout=subprocess.PIPE)
    try:
        output, _ = process.communicate(timeout=60)
        return output.decode()
    finally:
        process.kill()


def test_it_runs_as_long_as_its_starter() -> None:
    script = """
if os.fork() == 0:
    ask()
    print("runs", flush=True)
    time.sleep(1000)
    os._exit(0)
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert output_of(script) == "runs\n"


def test_it_does_not_begin_when_its_starter_is_gone_already() -> None:
    script = """
if os.fork() == 0:
    if os.fork() == 0:
        # Its parent is not the one that it was to end with.
        ask()
        print("runs", flush=True)
    else:
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    os._exit(0)
os.wait()
"""
    assert output_of(script) == "137\n"
