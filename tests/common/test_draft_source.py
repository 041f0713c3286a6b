"""Tests of the draft sources."""

from optimist.common.v1 import draft_source_pb2
from optimist_common.draft_source import DraftSource


def test_numbers_are_those_of_the_contract() -> None:
    names: dict[int, str] = {source: source.name for source in DraftSource}
    names[0] = "UNSPECIFIED"
    contract = draft_source_pb2.DraftSource.items()
    assert dict(contract) == {f"DRAFT_SOURCE_{name}": int(n) for n, name in names.items()}
