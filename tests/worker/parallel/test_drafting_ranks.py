"""Who drafts makes no difference between one process and two ranks, in texts nor in what is
accepted; ranks that differ nevertheless notice it."""

import json
from pathlib import Path

import pytest

from optimist_worker.service.process import build_runner
from tests.checkpoints import add_tokenizer, tiny_checkpoint
from tests.worker.parallel.drafting_rank import (
    generate_drafted,
    run_pair,
    save_drafters,
    settings_of,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("drafting"), "qwen3"))


def test_every_drafter_drafts_alike_and_ranks_that_diverge_end(
    target: Path, tmp_path: Path
) -> None:
    saved = save_drafters(target, tmp_path)
    drafters = ["none", "ngram", *(f"{kind}={path}" for kind, path in saved.items())]
    drafters.append(f"draft_model/shared={saved['draft_model']}")
    (code, output), (code_of_1, output_of_1) = run_pair([str(target), *drafters, "diverge"])
    assert code_of_1 == 3, output_of_1
    assert "plan 0 came to something else than on rank 0" in output_of_1
    assert code != 0
    found: dict[str, list[list[list[int]]]] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    assert list(found) == drafters, output
    for drafter in drafters:
        expected = generate_drafted(build_runner(settings_of(str(target), drafter)))
        assert found[drafter] == expected, drafter
        texts = [[token for step in steps for token in step][:32] for steps in expected]
        undrafted = [[token for step in steps for token in step][:32] for steps in found["none"]]
        assert texts == undrafted
    fewest = min(len(steps) for drafter in drafters for steps in found[drafter])
    assert fewest < 32
