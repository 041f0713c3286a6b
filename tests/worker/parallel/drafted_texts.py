"""Drafters of a target saved as a user has them, and what is generated with each."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from optimist_common.sampling import SamplingParams
from optimist_worker.core.plan import PlannedRow
from optimist_worker.drafters.heads.eagle import save_eagle
from optimist_worker.drafters.heads.medusa import MedusaHeads, save_medusa
from optimist_worker.model.model import load_model
from optimist_worker.runner.runner import Runner
from optimist_worker.settings import WorkerSettings
from tests.worker.drafters.drafting import blur, random_eagle
from tests.worker.parallel.tokenizer import add_tokenizer
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
    blur(model)
    model.module.save_pretrained(paths["draft_model"])
    add_tokenizer(paths["draft_model"])
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
    """Returns the tokens of each step and of each of SAMPLINGS: how many show what was accepted."""
    texts = []
    for sampling in SAMPLINGS:
        runner.release_all()
        steps: list[list[int]] = []
        first = PlannedRow(0, 40, 6, blocks_of(0))
        plan = plan_rows(0, [first], admissions=[admit(0, PROMPT, sampling)])
        while sum(map(len, steps)) < 32:
            (row,) = run(runner, plan)
            assert row.error is None, row.error
            steps.append(row.token_ids)
            plan = plan_rows(0, [PlannedRow(0, 1, 6, [])])
        texts.append(steps)
    return texts
