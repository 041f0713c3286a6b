from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path

import pytest

from optimist_worker.runner.runner import Runner
from tests.checkpoints import tiny_checkpoint
from tests.worker.call import Stub, serve
from tests.worker.step import build_runner


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the checkpoint of a family, which tests share and leave as it is."""
    directory = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda family: tiny_checkpoint(directory, family))


@pytest.fixture(scope="session")
def llama_path(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="session")
def shared_llama(llama_path: Path) -> Runner:
    return build_runner(llama_path)


@pytest.fixture
def llama(shared_llama: Runner) -> Runner:
    """A float64 Llama whose slots are all free."""
    shared_llama.release_all()
    return shared_llama


@pytest.fixture
async def stub(llama: Runner) -> AsyncIterator[Stub]:
    """The Llama as it is served."""
    async with serve(llama) as stub:
        yield stub
