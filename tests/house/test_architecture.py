import re

from tests.stack import REPOSITORY

PACKAGES = [*REPOSITORY.glob("services/*/optimist_*"), REPOSITORY]


def test_every_file_that_the_architecture_names_exists() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    names = re.findall(r"`([\w/]+\.(?:py|proto))`", page)
    assert len(names) > 40
    assert [name for name in names if not any((root / name).exists() for root in PACKAGES)] == []
