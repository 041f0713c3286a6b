"""transformers `generate` with prompt lookup, which takes one prompt at a time."""

from optimist_bench.peers.engine import Engine, Setup
from optimist_bench.peers.generate import Generate
from optimist_bench.peers.transformers_model import load_model

# The fastest of those tried on edits (10 to 100 tokens, n-grams of 1 to 4).
NUM_TOKENS = 40
MAX_NGRAM = 4


def load(setup: Setup) -> Engine:
    """Loads the model."""
    return Generate(
        load_model(setup),
        setup.max_tokens,
        most_at_once=1,
        prompt_lookup_num_tokens=NUM_TOKENS,
        max_matching_ngram_size=MAX_NGRAM,
    )
