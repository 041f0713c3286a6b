from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from optimist.worker.v1 import worker_pb2_grpc
from optimist_common.network.channel import open_channel
from optimist_worker.runner.runner import Runner
from tests.checkpoints import tiny_checkpoint
from tests.worker.call import serve
from tests.worker.parallel.lockstep import Lockstep
from tests.worker.parallel.ranked_worker import RankedWorker
from tests.worker.parallel.tokenizer import add_tokenizer
from tests.worker.step import build_runner

PAIR = ("--dtype", "float64", "--tensor-parallel-size", "2", "--drafter", "none")


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("parallel"), "llama"))


@pytest.fixture(scope="session")
def shared_runner(model_path: Path) -> Runner:
    return build_runner(model_path)


@pytest.fixture
def runner(shared_runner: Runner) -> Runner:
    """A float64 model held by this process alone, whose slots are all free."""
    shared_runner.release_all()
    return shared_runner


@pytest.fixture(scope="session")
def pair(model_path: Path) -> Iterator[RankedWorker]:
    """The same model held by two ranks."""
    worker = RankedWorker(model_path, *PAIR)
    yield worker
    worker.end()


@pytest.fixture
async def lockstep(runner: Runner, pair: RankedWorker) -> AsyncIterator[Lockstep]:
    async with AsyncExitStack() as stack:
        alone = await stack.enter_async_context(serve(runner))
        channel = await stack.enter_async_context(open_channel(pair.address))
        lockstep = Lockstep([alone, worker_pb2_grpc.WorkerServiceStub(channel)])
        yield lockstep
        lockstep.cancel()
