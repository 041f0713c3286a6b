from dataclasses import dataclass
from typing import Any


@dataclass
class EngineArgs:
    speculative_config: dict[str, Any] | None = None
    scheduler_cls: str | None = None
    pipeline_parallel_size: int = 1
    skip_tokenizer_init: bool = False

    def create_engine_config(self, usage_context: object = None, headless: bool = False) -> Any:
        return self
