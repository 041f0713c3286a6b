"""The gateway's fixtures."""

from tests.gateway.conftest import (
    backend,
    model_directory,
    scheduler,
    settings,
    tokenizer,
)

__all__ = ["backend", "model_directory", "scheduler", "settings", "tokenizer"]
