"""What the user names: it makes vLLM's workers verify drafts, and drafts nothing itself."""

from collections.abc import Sequence
from typing import Any

SCHEDULER = "optimist_vllm.scheduler.PredictionScheduler"


class Proposer:
    """vLLM's proposer of the method `custom_class`; `PredictionScheduler` has the drafts."""

    def __init__(self, vllm_config: Any) -> None:
        """Checks what was configured.

        Raises:
            RuntimeError: vLLM did not load the plugin, or its build computes wrongly with drafts.
        """
        scheduler = vllm_config.scheduler_config.scheduler_cls
        # The engine's is derived from ours.
        if not str(scheduler).startswith("optimist_vllm."):
            raise RuntimeError(
                f"optimist-vllm: the scheduler is {scheduler}, not {SCHEDULER}: vLLM did not load"
                " the plugin; leave VLLM_PLUGINS out or name optimist in it"
            )
        from optimist_vllm import repairs

        repairs.apply()

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """Does nothing: there is no model."""

    def propose(
        self, sampled_token_ids: Sequence[Sequence[int]], *_args: Any, **_kwargs: Any
    ) -> list[list[int]]:
        """Returns no drafts [num_rows][0]."""
        return [[] for _ in sampled_token_ids]
