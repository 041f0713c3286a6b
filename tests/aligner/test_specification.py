"""Windows and results, which are compiled with the aligner, keep their promises in Python too."""

import sys

import pytest

import optimist_aligner
from tests.command import run

# The aligner's own tests are of its specification, but for test_compiled.py. That what is compiled
# of windows and results does the same is tested beside them.
TESTS = tuple(f"tests/scheduler/core/{name}.py" for name in ("test_policies", "windows/test_trees"))


@pytest.mark.skipif(not optimist_aligner.IS_COMPILED, reason="all tests are of the specification")
def test_the_specification_keeps_the_same_promises() -> None:
    options = ("-q", "-p", "tests.pure", "-p", "no:xdist", "-p", "no:cacheprovider")
    assert " passed" in run(sys.executable, "-m", "pytest", *options, *TESTS)
