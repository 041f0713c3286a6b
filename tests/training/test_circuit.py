from functools import partial

import pytest

from optimist_training.circuit import initial
from optimist_training.circuit.basis import harmonic_code, next_count, spherical_code
from optimist_training.data.edits import KINDS, unseen_edits
from optimist_training.data.tokenizer import train_tokenizer
from optimist_training.evaluate import answers


def test_the_rotation_turns_a_count_into_the_next() -> None:
    code = harmonic_code(10)

    assert (code[:-1] @ next_count(10).T - code[1:]).abs().max() < 1e-2


def test_codes_of_counts_have_length_one() -> None:
    assert (harmonic_code(12).norm(dim=1) - 1).abs().max() < 2e-4


def test_codes_of_tokens_are_far_apart() -> None:
    code = spherical_code(300, 16, seed=0)

    products = code @ code.T - 2 * code.new_ones(300).diag()
    assert products.max() < 0.6


@pytest.mark.slow
def test_the_circuit_alone_edits_unseen_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # Codes are far enough apart after a tenth of the steps.
    monkeypatch.setattr(initial, "spherical_code", partial(spherical_code, num_steps=10))
    tokenizer = train_tokenizer()
    model = initial.initial_model(tokenizer, seed=0)

    results = list(answers(model, tokenizer, unseen_edits(2 * len(KINDS), seed=5)))

    assert sum(result.is_exact for result in results) >= 0.9 * len(results)
