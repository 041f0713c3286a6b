"""Whether a gateway serves, as a container asks it."""

from pathlib import Path

import pytest

from optimist_common.network.http_health import answers, main
from tests.certificates import issue, make_authority
from tests.cli.fake_gateway import serving
from tests.stack import free_port


def test_what_is_answered_is_exit_code_0() -> None:
    with serving([], []) as url:
        assert main([f"{url}/health"]) == 0


def test_the_certificate_of_a_gateway_need_not_name_the_loopback(tmp_path: Path) -> None:
    shown = issue(tmp_path, make_authority(tmp_path), "gateway", "DNS:api.example")
    with serving([], [], certificate=shown) as url:
        assert url.startswith("https://")
        assert answers(f"{url}/health", 5.0)
        assert not answers(url.replace("https", "http"), 5.0)


def test_nobody_there_is_exit_code_1_and_no_url_2(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}/health"
    assert main([url]) == 1
    assert url in capsys.readouterr().err
    assert main([]) == 2
