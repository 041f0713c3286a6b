import pytest

from tests.chaos.__main__ import main


def test_an_unknown_mode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "usage: python -m tests.chaos" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["faults", "partitions", "soak"])
def test_an_unknown_flag_is_refused_in_one_line(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([mode, "--sedonds", "3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--sedonds" in line
