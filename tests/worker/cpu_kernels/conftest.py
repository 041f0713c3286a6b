from collections.abc import Iterator

import pytest
import torch

from optimist_worker.cpu_kernels import build
from tests.worker.attention import test_attention


@pytest.fixture(scope="module", params=build.TARGETS)
def each_target(request: pytest.FixtureRequest) -> Iterator[None]:
    """Computes by the kernels for one of the instruction sets of this machine."""
    kernels = build.load()
    if kernels is None:
        pytest.skip("no C++ compiler, or no CPU for kernels")
    if not kernels.use(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    from optimist_worker.cpu_kernels import launch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_attention, "attend_rows", launch.attend)
        patch.setattr(test_attention, "DTYPE", torch.float32)
        yield
    build.use_fastest(kernels)
