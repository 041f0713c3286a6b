"""transformers `generate` with a draft model, which takes one prompt at a time."""

from optimist_bench.peers.engine import Engine, Setup
from optimist_bench.peers.generate import Generate
from optimist_bench.peers.transformers_model import load_model


def load(setup: Setup) -> Engine:
    """Loads both models; raises ValueError if there is no draft model."""
    if not setup.draft_model:
        raise ValueError("needs a draft model")
    return Generate(
        load_model(setup),
        setup.max_tokens,
        most_at_once=1,
        assistant_model=load_model(setup, setup.draft_model),
    )
