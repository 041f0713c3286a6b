"""Who drafts makes no difference between one process and two ranks, in texts nor in what is
accepted; ranks that differ nevertheless notice it.

python -m tests.worker.parallel.test_drafting_ranks MODEL DRAFTER=DIRECTORY...
is a rank that generates with one drafter after the other; rank 0 prints what came of each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from optimist_common.sampling import SamplingParams
from optimist_training.drafters.heads import save_eagle, save_medusa
from optimist_worker.core.plan import PlannedRow
from optimist_worker.drafters.heads.medusa import MedusaHeads
from optimist_worker.execution.group import Group, GroupError
from optimist_worker.execution.ranks import LOOPBACK, LocalRanks, Ranks, find_ranks
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner
from optimist_worker.service.process import build_runner
from optimist_worker.service.rank import follow
from optimist_worker.settings import WorkerSettings
from tests.checkpoints import add_tokenizer, tiny_checkpoint
from tests.stack import free_port
from tests.worker.drafters.drafting import random_eagle, save_blurred
from tests.worker.model.packing import FORMS, pack_checkpoint
from tests.worker.step import admit, blocks_of, plan_rows, run

PROMPT = [5, 9, 200, 17, 44, 44, 8, 130, 77, 201, 3, 90, 6, 15, 99, 250, 31, 12, 60, 4, 7]
NUM_TOKENS = 20
Texts = list[list[list[int]]]
"""Tokens of each step of each of SAMPLINGS: how many show what was accepted."""
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
    """Returns the settings of a small worker with a drafter KIND or KIND=DIRECTORY."""
    kind, _, path = drafter.partition("=")
    return WorkerSettings.model_validate(
        {
            "model": model,
            "dtype": "float64",
            "num_kv_blocks": 96,
            "max_model_len": 400,
            "drafter": kind,
            "drafter_model": path,
            "drafter_tokens": 6,
            "drafter_tree": "none" if kind == "ngram" else "dynamic",
            "drafter_depth": 3,
            "drafter_width": 2,
            "tensor_parallel_size": tensor_parallel_size,
        }
    )


def generate_drafted(runner: Runner) -> Texts:
    runner.release_all()
    slots = range(len(SAMPLINGS))
    texts: Texts = [[] for _ in slots]
    admissions = [admit(slot, PROMPT, SAMPLINGS[slot]) for slot in slots]
    rows = [PlannedRow(slot, len(PROMPT), 6, blocks_of(slot)) for slot in slots]
    plan = plan_rows(0, rows, admissions=admissions)
    while min(sum(map(len, steps)) for steps in texts) < NUM_TOKENS:
        for row in run(runner, plan):
            assert row.error is None, row.error
            texts[row.slot].append(row.token_ids)
        plan = plan_rows(0, [PlannedRow(slot, 1, 6, []) for slot in slots])
    return texts


def texts_of(drafted: Texts) -> list[list[int]]:
    return [[token for step in steps for token in step][:NUM_TOKENS] for steps in drafted]


def test_every_drafter_drafts_alike_and_ranks_that_diverge_end(tmp_path: Path) -> None:
    # Each rank takes its part of what is unpacked.
    target = tmp_path / "packed"
    pack_checkpoint(tiny_checkpoint(tmp_path, "qwen3"), target, FORMS["int4"])
    add_tokenizer(target)
    saved = save_drafters(target, tmp_path)
    drafters = [f"{kind}={path}" for kind, path in saved.items()]
    command = [sys.executable, "-m", __name__, str(target), *drafters]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipe, environments = subprocess.PIPE, LocalRanks(0, 2, 2, LOOPBACK, 0).environments(free_port())
    processes = [
        subprocess.Popen(command, env=quiet | environment, stdout=pipe, stderr=pipe, text=True)
        for environment in environments
    ]
    try:
        (output, log), (output_of_1, _) = [each.communicate(timeout=200) for each in processes]
    finally:
        for process in processes:
            process.kill()
    code, code_of_1 = [process.wait() for process in processes]
    assert code_of_1 == 3, output_of_1
    assert "plan 0 came to something else than on rank 0" in output_of_1
    assert code != 0
    found = dict(json.loads(line) for line in output.splitlines())
    plain = texts_of(generate_drafted(build_runner(settings_of(str(target), "none"))))
    # A drafter that fails at all ranks costs drafts.
    assert texts_of(found.pop("failing")) == plain, log
    assert list(found) == drafters, log
    for drafter in drafters:
        expected = generate_drafted(build_runner(settings_of(str(target), drafter)))
        assert found[drafter] == expected, drafter
        assert texts_of(expected) == plain
    assert min(len(steps) for texts in found.values() for steps in texts) < NUM_TOKENS


def main(model: str, drafters: list[str]) -> int:
    ranks = find_ranks(os.environ, 2, 1)
    assert isinstance(ranks, Ranks)
    torch.set_num_threads(1)
    group = Group(ranks, "cpu", 60.0)
    for drafter in [*drafters, "failing"]:
        kind = "ngram" if drafter == "failing" else drafter
        runner = build_runner(settings_of(model, kind, tensor_parallel_size=2), group)
        if drafter == "failing":
            fail_often(runner)
        if ranks.is_leader:
            sys.stdout.write(json.dumps([drafter, generate_drafted(runner)]) + "\n")
            sys.stdout.flush()
            runner.engine.executor.end()
        else:
            follow(group, runner, 60.0)
    diverge(build_runner(settings_of(model, "ngram", tensor_parallel_size=2), group), group)
    return 0


def fail_often(runner: Runner) -> None:
    drafter: Any = runner.engine.drafter
    propose, num_calls = drafter.guarded.propose, 0

    def fail(rows: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3 == 0:
            raise IndexError("for the test")
        return propose(rows)

    drafter.guarded.propose = fail


def diverge(runner: Runner, group: Group) -> None:
    """Has rank 1 alone see other logits; it is expected to notice."""

    def turn(module: Any, arguments: Any, output: Any) -> None:
        output.logits = -output.logits

    if group.ranks.is_leader:
        generate_drafted(runner)
        return
    runner.engine.model.module.register_forward_hook(turn)
    try:
        follow(group, runner, 60.0)
    except GroupError as error:
        sys.stdout.write(f"{error}\n")
        sys.stdout.flush()
        os._exit(3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
