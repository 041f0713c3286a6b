import pytest

from optimist_worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ({"drafter_model": "heads"}, ["drafter_model=heads has no effect with drafter=ngram"]),
        ({"drafter_model": "heads", "drafter": "medusa"}, []),
        (
            {"drafter": "ngram", "drafter_tree": "fixed", "drafter_depth": 3},
            ["drafter_tree=fixed has no effect with drafter=ngram"],
        ),
        (
            {"drafter": "eagle", "drafter_width": 2, "drafter_bits": 4, "drafter_kv": "discard"},
            [
                "drafter_bits=4 has no effect with drafter=eagle",
                "drafter_width=2 has no effect with drafter_tree=none",
                "drafter_kv=discard has no effect with drafter=eagle",
            ],
        ),
        (
            {"num_kv_blocks": 9, "kv_memory_mib": 64},
            ["kv_memory_mib=64 has no effect with num_kv_blocks=9"],
        ),
        ({"num_kv_blocks": 9, "drafter_tokens": 5}, []),
    ],
)
def test_settings_without_an_effect_are_found(given: dict[str, object], unused: list[str]) -> None:
    settings = WorkerSettings.model_validate({"model": "m", **given})
    assert settings.find_unused() == unused
