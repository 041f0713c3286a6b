"""A worker whose process ends when a pass is fed a certain token, and which is started again.

python -m tests.worker.poisonous_worker TOKEN [OPTIONS OF THE WORKER]
"""

import os
import signal
import sys
from types import FrameType

import torch

from optimist_worker.__main__ import main as run_worker
from optimist_worker.core.batch.flat_batch import FlatBatch
from optimist_worker.model.model import Model


def poison(token_id: int) -> None:
    forward = Model.forward

    def forward_or_end(self: Model, batch: FlatBatch) -> torch.Tensor:
        if (batch.input_ids == token_id).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, batch)

    setattr(Model, "forward", forward_or_end)  # noqa: B010


def supervise(token_id: int, options: list[str]) -> None:
    """Starts the worker again and again, in processes that have imported everything."""
    while True:
        child = os.fork()
        if not child:
            poison(token_id)
            sys.argv[1:] = options
            sys.exit(run_worker())

        def end(number: int, _: FrameType | None, child: int = child) -> None:
            os.kill(child, number)

        signal.signal(signal.SIGTERM, end)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code >= 0:
            sys.exit(code)
        sys.stderr.write("the worker is started again\n")


if __name__ == "__main__":
    supervise(int(sys.argv[1]), sys.argv[2:])
