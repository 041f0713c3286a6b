from dataclasses import dataclass
from typing import Any


@dataclass
class SamplingParams:
    max_tokens: int = 16
    n: int = 1
    extra_args: dict[str, Any] | None = None
    min_tokens: int = 0
