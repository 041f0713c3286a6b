"""Predicted outputs in vLLM: drafts from the expected answer, the prompt and the output.

vllm serve MODEL \\
    --speculative-config '{"model":"optimist_vllm.Proposer","num_speculative_tokens":64}'
"""

from optimist_vllm.proposer import Proposer

__all__ = ["Proposer", "register"]


def register() -> None:
    """Lets vLLM's arguments know `Proposer`; without that flag nothing else of vLLM changes."""
    from optimist_vllm import engine_args, parent

    engine_args.install()
    parent.watch()
