"""The gateway's fixtures."""

from tests.gateway.conftest import (
    backend,
    gateway,
    model_directory,
    pytest_collection_modifyitems,
    shared_gateway,
    start,
    tokenizer,
)

__all__ = [
    "backend",
    "gateway",
    "model_directory",
    "pytest_collection_modifyitems",
    "shared_gateway",
    "start",
    "tokenizer",
]
