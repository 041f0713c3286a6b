"""Which headers Host are a server's own."""

import pytest

from optimist_gateway.core.hosts import AllowedHosts

OWN = ["localhost", "LocalHost:8000", "a.localhost:80", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"]
OWN += [
    "[::1]",
    "::1",
    "10.0.0.7:8000",
    "[fe80::1]:1",
    "gateway:8000",
    "Gateway.",
    "api.example.com",
]
OTHERS = [
    "evil.example",
    "localhost.evil.example",
    "evillocalhost",
    "example.com",
    "127.0.0.1.evil",
]
OTHERS += ["", "gateway.evil", "xgateway", "a:b", "127.0.0.1:80:evil", "0x7f.1", "xexample.com"]


@pytest.mark.parametrize("host", OWN)
def test_addresses_and_names_of_its_own_are_allowed(host: str) -> None:
    assert AllowedHosts(["gateway", "*.example.com"]).allows(host)


@pytest.mark.parametrize("host", OTHERS)
def test_other_names_are_not(host: str) -> None:
    assert not AllowedHosts(["gateway", "*.example.com"]).allows(host)
    assert AllowedHosts(["*"]).allows(host)
