"""Who may ask for what; API keys: how they are written, compared and followed.

Without keys, a page of somebody else's cannot ask by a name that leads here (DNS rebinding).
"""

import logging
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from unittest.mock import AsyncMock

import httpx
import pytest
import pytest_asyncio

from optimist_common.errors import SetupError
from optimist_gateway.security import keys as keys_module
from optimist_gateway.security.keys import Client, Keys, KeySource, parse_keys
from optimist_gateway.server.middleware import AllowedHosts
from tests.gateway.harness import BODIES, CHAT, Gateway, Start, bearer, error_of

KEY, ADMIN_KEY = "sk-client-1", "sk-admin-1"
ADMIN_DIGEST = sha256(ADMIN_KEY.encode()).hexdigest()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(start: Start) -> AsyncIterator[Gateway]:
    async with start(api_keys=[f"ann:{KEY}"], admin_keys=[ADMIN_DIGEST]) as gateway:
        # Without a socket: a client would not send all of these headers.
        transport = httpx.ASGITransport(gateway.app)
        async with httpx.AsyncClient(transport=transport, base_url=gateway.url) as gateway.http:
            yield gateway


in_module = pytest.mark.asyncio(loop_scope="module")
GUARDED = [
    *(CHAT, "/v1/models/tiny", "/metrics", "/docs", "/openapi.json", "/nothing", "/health/"),
    *("/HEALTH", "/page", "/healthx", "/tokenize", "/health%2f..%2fv1%2fmodels", "/health;a"),
]


@in_module
async def test_whatever_is_not_named_needs_a_key(guarded: Gateway) -> None:
    for path in GUARDED:
        for method in ("GET", "POST", "HEAD"):
            response = await guarded.http.request(method, path)
            assert response.status_code == 401, (method, path)
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert error_of(response, 401)["code"] == "missing_api_key"


@pytest.mark.parametrize("path", ["//health", "/v1/../health", ""])
@in_module
async def test_paths_that_clients_would_tidy_need_a_key(guarded: Gateway, path: str) -> None:
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": b"/health", "state": {}}
    # What URL and Host say is not gone by.
    scope |= {"headers": [(b"host", b"gateway/health?x=")], "query_string": b"/health"}
    send = AsyncMock()
    await guarded.app(scope | {"scheme": "http", "root_path": ""}, AsyncMock(), send)
    assert send.await_args_list[0].args[0]["status"] == 401


@in_module
async def test_probes_and_the_page_need_no_key(guarded: Gateway) -> None:
    for path in ("/health", "/ready", "/live", "/", "/page/js/main.js"):
        assert (await guarded.http.get(path)).status_code == 200
    assert (await guarded.http.get("/page/no-such-file")).status_code == 404


LET_IN = [bearer(KEY), bearer(ADMIN_KEY), {"authorization": f"bearer   {KEY} "}, {"x-api-key": KEY}]


@pytest.mark.parametrize("headers", [*LET_IN, {"x-api-key": KEY, "authorization": f"Bearer {KEY}"}])
@in_module
async def test_a_key_lets_in(guarded: Gateway, headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/metrics"):
        assert (await guarded.http.get(path, headers=headers)).status_code == 200


WRONG_KEYS = [KEY + "x", sha256(KEY.encode()).hexdigest(), "ann"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        *((bearer(key), "invalid_api_key") for key in WRONG_KEYS),
        ({"authorization": "Bearer wrong", "x-api-key": KEY}, "missing_api_key"),
        # It is no part of the URL or the body.
        ({}, "missing_api_key"),
    ],
    ids=lambda one: str(one)[:60],
)
@in_module
async def test_anything_else_does_not(guarded: Gateway, headers: dict[str, str], code: str) -> None:
    url = f"{CHAT}?api_key={KEY}&key={KEY}"
    response = await guarded.http.post(url, json={"api_key": KEY}, headers=headers)
    error = error_of(response, 401)
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert KEY not in response.text
    # Who has no key need not send a body first.
    headers = headers | {"expect": "100-continue"}
    response = await guarded.http.post(url, json={}, headers=headers)
    error_of(response, 401)
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/admin/stats", "/admin/pause", "/admin/nothing", "/admin"])
@in_module
async def test_admin_needs_an_admin_key(guarded: Gateway, path: str) -> None:
    assert (await guarded.refused(path, 401))["code"] == "missing_api_key"
    assert (await guarded.refused(path, 403, key=KEY))["code"] == "permission_denied"


async def test_without_admin_keys_nobody_is_an_admin(start: Start) -> None:
    async with start(api_keys=[KEY], public_metrics=True, page=False) as gateway:
        for headers in ({}, bearer(KEY), {"authorization": "Bearer"}):
            response = await gateway.http.post("/admin/resume", headers=headers)
            assert error_of(response, 403)["code"] == "admin_disabled"
        # Metrics may be public, and the page left out: its paths are as any other.
        assert (await gateway.http.get("/metrics")).status_code == 200
        for path in ("/", "/page/js/main.js"):
            response = await gateway.http.get(path, headers=bearer(KEY))
            assert response.status_code == 404


async def test_cross_origin_pages_are_let_in_only_if_named(start: Start) -> None:
    origin, asked = "https://app.example", "access-control-request-headers"
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    preflight |= {asked: "authorization,content-type"}
    allowed = "access-control-allow-origin"
    async with start(api_keys=[KEY]) as gateway:
        assert allowed not in (await gateway.http.options(CHAT, headers=preflight)).headers
    async with start(api_keys=[KEY], allowed_origins=[origin]) as gateway:
        http = gateway.http
        response = await http.options(CHAT, headers=preflight)
        assert (response.status_code, response.headers[allowed]) == (200, origin)
        other = preflight | {"origin": "https://evil.example"}
        assert allowed not in (await http.options(CHAT, headers=other)).headers
        error_of(await http.post(CHAT, json={}, headers={"origin": origin}), 401)
        # OpenAI's client describes itself, in browsers too.
        describing = preflight | {asked: "authorization,x-stainless-lang"}
        assert (await http.options(CHAT, headers=describing)).status_code == 200


RETURNED = ["abc-123_X.y:z/w+=@", "a" * 128]


@pytest.mark.parametrize("given", [*RETURNED, "a" * 129, "two words", "ümlaut"], ids=repr)
async def test_every_answer_carries_a_request_id(gateway: Gateway, given: str) -> None:
    for path in ("/health", "/nothing", "/admin/stats"):
        response = await gateway.http.get(path, headers=[(b"x-request-id", given.encode())])
        (answered,) = response.headers.get_list("x-request-id")
        assert (answered == given) is (given in RETURNED)
        assert given in RETURNED or answered.startswith("req-")


SECRET = "sk-abc-123"
DIGEST = sha256(SECRET.encode()).hexdigest()


LINES = [f"ann:{SECRET}", f"  ann : {DIGEST.upper()} ", SECRET]


@pytest.mark.parametrize("line", LINES)
def test_a_key_is_found_by_its_secret_alone(line: str) -> None:
    keys = keys_in("", "# comment", "", "bob:other", line)
    # Without a name it is called by its digest.
    name = "ann" if "ann" in line else f"key-{DIGEST[:8]}"
    assert keys.find(SECRET.encode()) == Client(name)
    for wrong in ("", DIGEST, SECRET[:-1], SECRET + "4", SECRET.upper()):
        assert keys.find(wrong.encode()) is None


@pytest.mark.parametrize(
    ("lines", "number"),
    [(["a:1", "a:2"], 2), (["ok:1", ":secret"], 2), (["name:"], 1), ([f"x:{'k' * 600}"], 1)],
)
def test_wrong_lines_are_named_by_number_and_not_shown(lines: list[str], number: int) -> None:
    with pytest.raises(ValueError, match=f"line {number}") as caught:
        parse_keys(lines)
    assert "secret" not in str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def keys_in(path: Path | str, *listed: str) -> Keys:
    return Keys([KeySource("--api-keys", listed, str(path))])


def test_a_file_is_followed_unless_it_becomes_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys_module, "CHECK_SECONDS", 0.0)
    path.write_text("ann:first-key\n")
    keys = keys_in(path)
    assert keys.find(b"first-key") == Client("ann")
    path.write_text("ann:second-key\nbob:third-key\n")
    assert keys.find(b"first-key") is None
    assert keys.find(b"second-key") == Client("ann")
    with caplog.at_level(logging.ERROR):
        path.write_text("ann:fourth-key\nann:fifth-key\n")
        assert keys.find(b"second-key") is not None
        assert keys.find(b"fourth-key") is None
    assert "line 2" in caplog.text
    assert "fifth-key" not in caplog.text
    path.unlink()
    assert keys.find(b"second-key") is not None
    # One without keys lets nobody in.
    path.write_text("")
    empty = keys_in(path)
    assert empty.asks_clients
    assert empty.find(b"") is None
    assert not keys_in("").asks_clients


def test_what_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(SetupError, match=r"--api-keys-file: .*keys"):
        keys_in(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SetupError, match="UTF-8"):
        keys_in(path)
    sources = [KeySource(f"--{whose}-keys", (f"ann:{whose}",), "") for whose in ("api", "admin")]
    with pytest.raises(SetupError, match="twice"):
        Keys(sources)


EVIL = "evil.example:8000"


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
