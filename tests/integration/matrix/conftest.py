import pytest

from optimist_training.data.edits import Edit
from tests.integration.edit import edits


@pytest.fixture(scope="module")
def batch() -> list[Edit]:
    found = [edit for edit in edits(60, seed=9) if 200 < len(edit.after) < 300][:4]
    assert len(found) == 4
    return found
