"""A process ends with its starter, at whatever moment that ends; its garbage; no PyTorch."""

import gc
import subprocess
import sys
from types import ModuleType

import pytest

from optimist_common.process import SELDOM, collecting_seldom, hide_torch
from tests.stack import BUNDLED_MODEL

BEGIN = """
import os, signal, sys, time
from optimist_common.process import end_with_this_process, hide_torch
ask = end_with_this_process(signal.SIGKILL)
"""
RUNS_AS_LONG = """
if os.fork() == 0:
    ask()
    print("runs", flush=True)
    time.sleep(1000)
    os._exit(0)
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""
STARTER_IS_GONE = """
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
READ = """
hide_torch()
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(len(tokenizer.encode("x = 1")), [name for name in sys.modules if name.startswith("torch.")])
"""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone sends the signal")


def output_of(script: str, *words: str) -> tuple[str, str]:
    """Returns what a script and its descendants print, once all of them have ended."""
    command = [sys.executable, "-c", BEGIN + script, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        return process.communicate(timeout=60)
    finally:
        process.kill()


@needs_linux
@pytest.mark.parametrize(
    ("script", "output"), [(RUNS_AS_LONG, "runs\n"), (STARTER_IS_GONE, "137\n")]
)
def test_a_process_ends_with_its_starter(script: str, output: str) -> None:
    assert output_of(script)[0] == output


def test_tokenizers_are_read_without_torch_and_without_advice() -> None:
    output, errors = output_of(READ, str(BUNDLED_MODEL))
    assert output.split(maxsplit=1)[1] == "[]\n"
    assert errors == ""


def test_what_was_imported_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", imported)
    monkeypatch.setenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    hide_torch()
    assert sys.modules["torch"] is imported


def test_the_collector_looks_seldom_while_a_service_serves_and_as_before_after_that() -> None:
    before = gc.get_threshold()
    with collecting_seldom():
        assert gc.get_threshold() == SELDOM
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    # As the tests were before.
    gc.freeze()
