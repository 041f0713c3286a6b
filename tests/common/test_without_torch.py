import os
import subprocess
import sys

from tests.stack import BUNDLED_MODEL

READ = """
import sys
from optimist_common.process import hide_torch
hide_torch()
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(len(tokenizer.encode("x = 1")), [name for name in sys.modules if name.startswith("torch.")])
"""
HIDE_AFTER_IMPORT = """
import torch
from optimist_common.process import hide_torch
hide_torch()
import torch
print(torch.ones(1).item())
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)


def test_tokenizers_are_read_without_torch_and_without_advice() -> None:
    done = run(READ, str(BUNDLED_MODEL))
    assert done.stdout.split(maxsplit=1)[1] == "[]\n"
    assert done.stderr == ""


def test_what_was_imported_stays() -> None:
    assert run(HIDE_AFTER_IMPORT).stdout == "1.0\n"
