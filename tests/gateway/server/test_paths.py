"""Wrong paths and methods, of which errors name the right ones; HEAD."""

import httpx
import pytest

from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Gateway, Start, bearer, error_of

MODELS = "/v1/models"
# Clients add /v1 to the base URL or do not, and users write it or do not.
WRONG = {
    "/chat/completions": f"POST {CHAT}",
    "/completions": f"POST {COMPLETIONS}",
    "/responses": f"POST {RESPONSES}",
    "/models": f"GET {MODELS}",
    "/v1/v1/chat/completions": f"POST {CHAT}",
    "/v1/v1/models": f"GET {MODELS}",
    "/v1/chat/completions/": f"POST {CHAT}",
    "/v1/responses/": f"POST {RESPONSES}",
    "/chat/completions/": f"POST {CHAT}",
    "/api/v1/chat/completions": f"POST {CHAT}",
    "/api/v1/models": f"GET {MODELS}",
    "/openai/v1/chat/completions": f"POST {CHAT}",
    "/openai/v1/responses": f"POST {RESPONSES}",
    "/openai/deployments/a-long-name-of-mine/chat/completions": f"POST {CHAT}",
    "//v1/chat/completions": f"POST {CHAT}",
    "/v1//chat/completions": f"POST {CHAT}",
    "/v1/chat/completion": f"POST {CHAT}",
    "/V1/chat/completions": f"POST {CHAT}",
    "/v1/completion": f"POST {COMPLETIONS}",
    "/v1/model": f"GET {MODELS}",
    "/v1/health": "GET /health",
    "/healthz": "GET /health",
}
OTHERS = ["/v1/embeddings", "/v1/audio/speech", "/v1/moderations", "/v1/messages", "/v1/files"]
OTHERS += ["/v1/conversations", "/v1/images/generations", "/v1/rerank", "/api/chat", "/favicon.ico"]
OTHERS += ["/v1", "/v1/", "/" + "a" * 5000, "/" + "/" * 100]


async def ask(gateway: Gateway, method: str, path: str) -> httpx.Response:
    # The client itself would shorten a path that begins with two slashes.
    url = httpx.URL(gateway.url).copy_with(raw_path=path.encode())
    return await gateway.http.request(method, url)


@pytest.mark.parametrize(("path", "right"), WRONG.items())
async def test_a_wrong_path_names_the_right_one(gateway: Gateway, path: str, right: str) -> None:
    for method in ("POST", "GET"):
        error = error_of(await ask(gateway, method, path), 404)
        assert error["code"] == "unknown_url"
        assert f"no such endpoint: {method} {path} (did you mean {right}?)" == error["message"]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path[:20])
async def test_what_is_not_there_is_like_nothing(gateway: Gateway, path: str) -> None:
    error = error_of(await ask(gateway, "POST", path), 404)
    assert error["code"] == "unknown_url"
    assert "did you mean" not in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
        ("PUT", RESPONSES, "POST"),
        ("DELETE", COMPLETIONS, "POST"),
        ("PATCH", "/tokenize", "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("POST", MODELS, "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("OPTIONS", MODELS, "GET, HEAD"),
    ],
)
async def test_a_wrong_method_names_the_right_one(
    gateway: Gateway, method: str, path: str, allowed: str
) -> None:
    response = await ask(gateway, method, path)
    assert response.headers["allow"] == allowed
    if method == "HEAD":
        assert (response.status_code, response.content) == (405, b"")
        return
    error = error_of(response, 405)
    assert error["code"] == "method_not_allowed"
    assert error["message"] == f"{path} takes {allowed}, not {method}"


PATHS = ["/", "/page/main.js", "/health", "/ready", "/live", "/metrics"]
PATHS += [
    MODELS,
    "/v1/models/tiny",
    "/v1/models/other",
    "/openapi.json",
    "/none",
]


@pytest.mark.parametrize("path", PATHS)
async def test_head_is_get_without_a_body(gateway: Gateway, path: str) -> None:
    got, head = [await ask(gateway, method, path) for method in ("GET", "HEAD")]
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert set(head.headers) == set(got.headers)
    assert head.headers["content-type"] == got.headers["content-type"]
    # Metrics change, and others only by their number of digits.
    if path not in ("/metrics", "/none"):
        assert head.headers["content-length"] == got.headers["content-length"]


async def test_head_needs_a_key_where_get_does(start: Start) -> None:
    async with start(api_keys=["key-a"]) as gateway:
        assert (await gateway.http.head(MODELS)).status_code == 401
        assert (await gateway.http.head(MODELS, headers=bearer("key-a"))).status_code == 200
        assert (await gateway.http.head("/health")).status_code == 200
