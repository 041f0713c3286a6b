"""Without keys, a page of somebody else's cannot ask by a name that leads here (DNS rebinding)."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from optimist_gateway.server.middleware import AllowedHosts
from tests.gateway.harness import BODIES, CHAT, Gateway, Start, bearer, error_of

EVIL = "evil.example:8000"
in_module = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyless(start: Start) -> AsyncIterator[Gateway]:
    async with start(allowed_hosts=[], host="127.0.0.1") as gateway:
        yield gateway


async def get(gateway: Gateway, path: str, host: str, **headers: str) -> httpx.Response:
    return await gateway.http.get(path, headers={"host": host, **headers})


@in_module
async def test_another_name_is_refused_with_what_is_right(keyless: Gateway) -> None:
    keyless.say("x")
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
        error = error_of(await get(keyless, path, EVIL), 421)
        assert error["code"] == "wrong_host"
        assert EVIL in error["message"]
        assert "--allowed-hosts" in error["message"]
    response = await keyless.http.post(CHAT, json=BODIES[CHAT], headers={"host": EVIL})
    assert error_of(response, 421)
    assert keyless.adds == []
    assert 'requests_total{endpoint="none",outcome="421"} 5.0' in await keyless.metrics()


@in_module
async def test_addresses_names_of_the_loopback_and_probes_are_answered(keyless: Gateway) -> None:
    for host in ("localhost:8000", "app.localhost", "127.0.0.1", "[::1]:8000", "192.168.0.9:80"):
        assert (await get(keyless, "/v1/models", host)).status_code == 200
    # They say nothing that a page could use, and probes call by any name.
    for path in ("/health", "/ready", "/live", "/"):
        assert (await get(keyless, path, EVIL)).status_code == 200


async def test_with_keys_any_name_will_do_unless_some_are_listed(start: Start) -> None:
    key = bearer("key-a")
    async with start(api_keys=["ann:key-a"]) as gateway:
        assert (await get(gateway, "/v1/models", EVIL, **key)).status_code == 200
        assert (await get(gateway, "/v1/models", EVIL)).status_code == 401
    async with start(api_keys=["ann:key-a"], allowed_hosts=["gateway"]) as gateway:
        assert (await get(gateway, "/v1/models", EVIL, **key)).status_code == 421
        assert (await get(gateway, "/v1/models", "gateway", **key)).status_code == 200


OWN = ["LocalHost:8000", "a.localhost:80", "127.9.9.9", "[::1]:8000", "::1", "10.0.0.7:8000"]
OWN += ["gateway:8000", "Gateway.", "api.example.com"]
OTHERS = ["", "evillocalhost", "localhost.evil.example", "example.com", "xexample.com", "xgateway"]
OTHERS += ["127.0.0.1.evil", "a:b", "127.0.0.1:80:evil", "0x7f.1"]


def test_which_names_are_a_servers_own() -> None:
    named = AllowedHosts(["gateway", "*.example.com"])
    assert all(map(named.allows, OWN))
    assert not any(map(named.allows, OTHERS))
    assert all(map(AllowedHosts(["*"]).allows, OTHERS))
