"""Who may ask for what."""

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

from optimist_common.errors import SetupError
from optimist_common.settings import load_settings
from optimist_gateway.server.app import create_app
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import asking, serving
from tests.gateway.fake_scheduler import Script

KEY, ADMIN_KEY = "sk-client-1", "sk-admin-1"
CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
PROBES = ["/health", "/ready", "/startup", "/live"]


@pytest.fixture
async def http(settings: GatewaySettings, tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    keys = {"api_keys": [f"ann:{KEY}"], "admin_keys": [sha256(ADMIN_KEY.encode()).hexdigest()]}
    async with asking(settings, tokenizer, **keys) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def error_of(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


GUARDED = [
    *(CHAT, "/v1/completions", "/v1/models", "/v1/models/tiny", "/metrics", "/docs"),
    *("/openapi.json", "/nothing", "/health/", "/HEALTH", "/page", "/healthx", "/tokenize"),
    *("/health%2f..%2fv1%2fmodels", "/v1/responses", "/version", "/detokenize", "/health;a"),
]
METHODS = ["GET", "POST", "OPTIONS", "HEAD", "DELETE"]


async def test_whatever_is_not_named_needs_a_key(http: httpx.AsyncClient) -> None:
    for path in GUARDED:
        for method in METHODS:
            response = await http.request(method, path)
            assert response.status_code == 401, (method, path)
            assert response.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert error_of(response, 401)["code"] == "missing_api_key"


@pytest.mark.parametrize("path", ["//health", "/v1/../health", "/./health", "", "health", "*"])
async def test_paths_that_clients_would_tidy_need_a_key(
    settings: GatewaySettings, tokenizer: Tokenizer, path: str
) -> None:
    app = create_app(settings.model_copy(update={"api_keys": [KEY]}), tokenizer)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    # What URL and Host say is not gone by.
    headers = [(b"host", b"gateway/health?x=")]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": b"/health", "state": {}}
    more = {"headers": headers, "query_string": b"/health", "scheme": "http", "root_path": ""}
    await app(scope | more, receive, send)
    assert sent[0]["status"] == 401


@pytest.mark.parametrize("path", PROBES)
async def test_probes_need_no_key(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 200


async def test_the_page_needs_no_key(http: httpx.AsyncClient) -> None:
    for path, status in (("/", 200), ("/page/js/main.js", 200), ("/page/no-such-file", 404)):
        assert (await http.get(path)).status_code == status


@pytest.mark.parametrize(("page", "status"), [(True, 200), (False, 404)])
async def test_the_page_can_be_left_out(
    settings: GatewaySettings, tokenizer: Tokenizer, page: bool, status: int
) -> None:
    async with asking(settings, tokenizer, page=page) as http:
        for path in ("/", "/page/js/main.js"):
            assert (await http.get(path)).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        bearer(KEY),
        {"authorization": f"bearer   {KEY} "},
        {"x-api-key": KEY},
        {"x-api-key": KEY, "authorization": f"Bearer {KEY}"},
        bearer(ADMIN_KEY),
    ],
)
async def test_a_key_lets_in(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.get("/v1/models", headers=headers)).status_code == 200
    assert (await http.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (bearer("sk-client-2"), "invalid_api_key"),
        (bearer(KEY + "x"), "invalid_api_key"),
        (bearer(sha256(KEY.encode()).hexdigest()), "invalid_api_key"),
        (bearer(sha256(ADMIN_KEY.encode()).hexdigest()), "invalid_api_key"),
        (bearer("ann"), "invalid_api_key"),
        (bearer(""), "missing_api_key"),
        ({"authorization": KEY}, "missing_api_key"),
        ({"authorization": f"Basic {KEY}"}, "missing_api_key"),
        ({"authorization": "Bearer wrong", "x-api-key": KEY}, "missing_api_key"),
        ({"x-api-key": "k" * 10_000}, "invalid_api_key"),
    ],
)
async def test_anything_else_does_not(
    http: httpx.AsyncClient, headers: dict[str, str], code: str
) -> None:
    response = await http.post(CHAT, json=BODY, headers=headers)
    error = error_of(response, 401)
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert KEY not in response.text


async def test_a_key_is_no_part_of_the_url_or_the_body(http: httpx.AsyncClient) -> None:
    error_of(await http.get(f"/v1/models?api_key={KEY}&key={KEY}"), 401)
    error_of(await http.post(CHAT, json=BODY | {"api_key": KEY}), 401)


@pytest.mark.parametrize("path", ["/admin/stats", "/admin/pause", "/admin/nothing", "/admin"])
async def test_admin_needs_an_admin_key(http: httpx.AsyncClient, path: str) -> None:
    assert error_of(await http.post(path), 401)["code"] == "missing_api_key"
    error = error_of(await http.post(path, headers=bearer(KEY)), 403)
    assert error["code"] == "permission_denied"


async def test_without_admin_keys_nobody_is_an_admin(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> None:
    async with asking(settings, tokenizer, api_keys=[KEY]) as http:
        for headers in ({}, bearer(KEY), bearer("")):
            error = error_of(await http.post("/admin/resume", headers=headers), 403)
            assert error["code"] == "admin_disabled"


async def test_without_keys_everybody_is_let_in(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> None:
    async with asking(settings, tokenizer, admin_keys=[ADMIN_KEY]) as http:
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.get("/v1/models", headers=bearer("any"))).status_code == 200


async def test_metrics_may_be_public(settings: GatewaySettings, tokenizer: Tokenizer) -> None:
    async with asking(settings, tokenizer, api_keys=[KEY], public_metrics=True) as http:
        assert (await http.get("/metrics")).status_code == 200


async def test_other_protocols_are_closed(settings: GatewaySettings, tokenizer: Tokenizer) -> None:
    app = create_app(settings, tokenizer)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "websocket", "path": "/health", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_openai_s_client_knows_the_error(
    settings: GatewaySettings, tokenizer: Tokenizer, scheduler: Any
) -> None:
    scheduler.script = Script()
    with_keys = settings.model_copy(update={"api_keys": [KEY]})
    async with (
        serving(with_keys, tokenizer) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client,
    ):
        with pytest.raises(AuthenticationError) as caught:
            await client.models.list()
        assert caught.value.code == "invalid_api_key"
        assert [model.id for model in (await client.with_options(api_key=KEY).models.list()).data]


async def test_cross_origin_pages_are_let_in_only_if_named(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> None:
    preflight = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    async with asking(settings, tokenizer, api_keys=[KEY]) as http:
        response = await http.options(CHAT, headers=preflight)
        assert "access-control-allow-origin" not in response.headers
    named = {"api_keys": [KEY], "allowed_origins": ["https://app.example"]}
    async with asking(settings, tokenizer, **named) as http:
        response = await http.options(CHAT, headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        other = await http.options(CHAT, headers=preflight | {"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        error_of(await http.post(CHAT, json=BODY, headers={"origin": "https://app.example"}), 401)
        # OpenAI's client describes itself, in browsers too.
        describing = {"access-control-request-headers": "authorization,x-stainless-lang"}
        assert (await http.options(CHAT, headers=preflight | describing)).status_code == 200


async def test_who_has_no_key_need_not_send_a_body_first(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> None:
    async with asking(settings, tokenizer, api_keys=[KEY]) as http:
        response = await http.post(CHAT, json=BODY, headers={"expect": "100-continue"})
        error_of(response, 401)
        assert response.headers["connection"] == "close"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_beyond_the_loopback_keys_or_consent_are_needed(host: str) -> None:
    flags = ["--model", "m", "--host", host]
    with pytest.raises(SetupError, match="--api-keys-file"):
        load_settings(GatewaySettings, flags)
    with pytest.raises(SetupError, match="--api-keys-file"):
        load_settings(GatewaySettings, [*flags, "--admin-keys", "k"])
    load_settings(GatewaySettings, [*flags, "--api-keys", "k"])
    load_settings(GatewaySettings, [*flags, "--insecure", "true"])


REQUEST_IDS = [
    ("abc-123_X.y:z/w+=@", True),
    ("a" * 128, True),
    ("a" * 129, False),
    ("", False),
    ("two words", False),
    ("ümlaut", False),
    ('quote"d', False),
    ("{}", False),
]


async def test_every_answer_carries_a_request_id(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> None:
    async with asking(settings, tokenizer) as http:
        for path in ("/health", "/nothing", "/v1/models", "/admin/stats", CHAT):
            for given, comes_back in REQUEST_IDS:
                response = await http.get(path, headers=[(b"x-request-id", given.encode())])
                (answered,) = response.headers.get_list("x-request-id")
                assert (answered == given) is comes_back
                assert comes_back or answered.startswith("req-")
