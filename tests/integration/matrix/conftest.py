from collections.abc import Iterator

import pytest
from openai import OpenAI

from optimist_training.data.edits import Edit
from tests.integration.edit import connect, edits
from tests.stack import Services


@pytest.fixture(scope="module")
def batch() -> list[Edit]:
    found = [edit for edit in edits(60, seed=9) if 200 < len(edit.after) < 300][:4]
    assert len(found) == 4
    return found


@pytest.fixture(scope="module")
def client(services: Services) -> Iterator[OpenAI]:
    """A client of the `services` of a module."""
    with connect(services.url) as connected:
        yield connected
