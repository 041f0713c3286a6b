"""Windows and results, which are compiled with the aligner, keep their promises in Python too."""

import sys

import pytest

import optimist_aligner
from tests.command import run

# The aligner's own tests are of its specification, but for test_compiled.py.
TESTS = tuple(
    f"tests/scheduler/core/{name}"
    for name in ("windows", "results", "test_scheduler.py", "test_known_bugs.py")
)


@pytest.mark.skipif(not optimist_aligner.IS_COMPILED, reason="all tests are of the specification")
def test_the_specification_keeps_the_same_promises() -> None:
    options = ("-q", "-p", "tests.pure", "-p", "no:xdist", "-p", "no:cacheprovider")
    assert " passed" in run(sys.executable, "-m", "pytest", *options, *TESTS)
