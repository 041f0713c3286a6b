"""A rank that generates with one drafter after the other; rank 0 prints what came of each.

python -m tests.worker.parallel.drafting_rank MODEL DRAFTER=DIRECTORY... [diverge]
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import PlannedRow
from optimist_worker.drafters.heads.eagle import save_eagle
from optimist_worker.drafters.heads.medusa import MedusaHeads, save_medusa
from optimist_worker.execution.group import Group, GroupError
from optimist_worker.execution.ranks import LOOPBACK, LocalRanks, Ranks, find_ranks
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner
from optimist_worker.service.process import build_runner
from optimist_worker.service.rank import follow
from optimist_worker.settings import WorkerSettings
from tests.stack import free_port
from tests.worker.drafters.drafting import random_eagle, save_blurred
from tests.worker.step import admit, blocks_of, plan_rows, run

PROMPT = [5, 9, 200, 17, 44, 44, 8, 130, 77, 201, 3, 90, 6, 15, 99, 250, 31, 12, 60, 4, 7]
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8, seed=11, top_p=0.95))


def save_drafters(target: Path, directory: Path) -> dict[str, str]:
    """Saves one of each kind; returns their directories by kind.

    The heads have neither embedding nor output matrix of their own.
    """
    paths = {kind: directory / kind for kind in ("draft_model", "medusa", "eagle")}
    model = load_model(str(target), "float64", "cpu")
    save_eagle(random_eagle(model), paths["eagle"], torch.float64)
    heads = MedusaHeads(3, 1, model.module.config.hidden_size, model.vocab_size, share_lm_head=True)
    save_medusa(heads, paths["medusa"], torch.float64)
    (file,) = paths["medusa"].glob("*.safetensors")
    weights = load_file(file)
    del weights["lm_head.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    save_blurred(model, paths["draft_model"])
    return {kind: str(path) for kind, path in paths.items()}


def settings_of(model: str, drafter: str, tensor_parallel_size: int = 1) -> WorkerSettings:
    """Returns the settings of a small worker.

    A drafter is KIND or KIND=DIRECTORY, or KIND/shared=DIRECTORY if ranks share its layers.
    """
    kind, _, path = drafter.partition("=")
    kind, _, shared = kind.partition("/")
    return WorkerSettings.model_validate(
        {
            "model": model,
            "dtype": "float64",
            "num_kv_blocks": 96,
            "max_model_len": 400,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "drafter": kind,
            "drafter_model": path,
            "drafter_tokens": 6,
            "drafter_tree": "none" if kind == "ngram" else "dynamic",
            "drafter_depth": 3,
            "drafter_width": 2,
            "tensor_parallel_size": tensor_parallel_size,
            "drafter_tensor_parallel_size": tensor_parallel_size if shared else 1,
        }
    )


def generate_drafted(runner: Runner) -> list[list[list[int]]]:
    """Returns the tokens of each step of each of SAMPLINGS: how many show what was accepted."""
    runner.release_all()
    slots = range(len(SAMPLINGS))
    texts: list[list[list[int]]] = [[] for _ in slots]
    admissions = [admit(slot, PROMPT, SAMPLINGS[slot]) for slot in slots]
    rows = [PlannedRow(slot, len(PROMPT), 6, blocks_of(slot)) for slot in slots]
    plan = plan_rows(0, rows, admissions=admissions)
    while min(sum(map(len, steps)) for steps in texts) < 32:
        for row in run(runner, plan):
            assert row.error is None, row.error
            texts[row.slot].append(row.token_ids)
        plan = plan_rows(0, [PlannedRow(slot, 1, 6, []) for slot in slots])
    return texts


def run_pair(arguments: Sequence[str]) -> list[tuple[int, str]]:
    """Runs this module as two ranks; returns what each exits with and prints."""
    ranks = LocalRanks(0, 2, 2, LOOPBACK, 0)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in ranks.environments(free_port())
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.wait() for process in processes]
    return list(zip(codes, outputs, strict=True))


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
