from pathlib import Path

import pytest

from optimist_worker.runner.runner import Runner
from tests.checkpoints import tiny_checkpoint
from tests.worker.step import build_runner


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def llama_path(checkpoints: Path) -> Path:
    return tiny_checkpoint(checkpoints, "llama")


@pytest.fixture(scope="session")
def shared_llama(llama_path: Path) -> Runner:
    return build_runner(llama_path)


@pytest.fixture
def llama(shared_llama: Runner) -> Runner:
    """A float64 Llama whose slots are all free."""
    shared_llama.release_all()
    return shared_llama
