from typing import Any


class EngineCore:
    """Asks the workers for drafts after each pass."""

    def __init__(self, scheduler: Any, model_executor: Any) -> None:
        self.scheduler = scheduler
        self.model_executor = model_executor

    def post_step(self, model_executed: bool) -> None:
        if model_executed:
            self.scheduler.update_draft_token_ids(self.model_executor.take_draft_token_ids())
