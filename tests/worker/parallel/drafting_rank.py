"""A rank that generates with one drafter after the other; rank 0 prints what came of each.

python -m tests.worker.parallel.drafting_rank MODEL DRAFTER=DIRECTORY... [diverge]
"""

import json
import os
import sys
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from optimist_worker.execution.group import Group, GroupError
from optimist_worker.execution.ranks import Ranks, find_ranks
from optimist_worker.runner.runner import Runner
from optimist_worker.service.process import build_runner
from optimist_worker.service.rank import follow
from tests.worker.parallel.drafted_texts import generate_drafted, settings_of


def main(model: str, drafters: list[str]) -> int:
    ranks = find_ranks(os.environ, 2, 1)
    assert isinstance(ranks, Ranks)
    torch.set_num_threads(1)
    group = Group(ranks, "cpu", 60.0)
    for drafter in drafters:
        if drafter == "diverge":
            return diverge(model, group)
        settings = settings_of(model, drafter, tensor_parallel_size=2)
        runner = build_runner(settings, group)
        if drafter.startswith("draft_model"):
            assert shares_layers(runner.engine.drafter) == ("/shared=" in drafter)
        if not ranks.is_leader:
            follow(group, runner, 60.0)
        else:
            sys.stdout.write(json.dumps({drafter: generate_drafted(runner)}) + "\n")
            sys.stdout.flush()
            runner.engine.executor.end()
    group.close()
    return 0


def shares_layers(drafter: Any) -> bool:
    """Tells whether a draft model's layers are divided among the ranks."""
    weights = drafter._network._model.module.parameters()
    return any(isinstance(weight, DTensor) for weight in weights)


def diverge(model: str, group: Group) -> int:
    """Has rank 1 alone see other logits; it is expected to notice."""
    settings = settings_of(model, "ngram", tensor_parallel_size=2)
    runner = build_runner(settings, group)
    if group.ranks.is_leader:
        generate_drafted(runner)
        return 0
    turn_logits(runner)
    try:
        follow(group, runner, 60.0)
    except GroupError as error:
        sys.stdout.write(f"{error}\n")
        sys.stdout.flush()
        os._exit(3)
    return 0


def turn_logits(runner: Runner) -> None:
    """Makes the likeliest token the least likely."""
    module = runner.engine.model.module
    compute = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = compute(*args, **kwargs)
        output.logits = -output.logits
        return output

    module.forward = forward


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
