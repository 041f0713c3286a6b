"""Wrong paths and methods, of which errors name the right ones; slashes too many; HEAD."""

import httpx
import pytest

from tests.gateway.harness import CHAT, COMPLETIONS, Gateway, error_of

MODELS = "/v1/models"


async def ask(gateway: Gateway, method: str, path: str) -> httpx.Response:
    # The client itself would shorten a path that begins with two slashes.
    url = httpx.URL(gateway.url).copy_with(raw_path=path.encode())
    return await gateway.http.request(method, url)


@pytest.mark.parametrize(
    ("path", "right"),
    [("/chat/completions", CHAT), ("/v1/v1/completions", COMPLETIONS), ("/models", MODELS)],
)
async def test_a_base_url_with_v1_twice_or_not_at_all(
    gateway: Gateway, path: str, right: str
) -> None:
    error = error_of(await ask(gateway, "POST", path), 404)
    assert error["message"] == f"no such endpoint: POST {path} (did you mean {right}?)"


@pytest.mark.parametrize("path", ["/v1//models", "//v1/models/", "/v1/models/"])
async def test_slashes_too_many_are_one(gateway: Gateway, path: str) -> None:
    response = await ask(gateway, "GET", path)
    assert response.json()["object"] == "list"


@pytest.mark.parametrize("path", ["/none", "/v1/embeddings", "/v1", "/" + "a" * 5000])
async def test_what_is_not_there_is_said_so(gateway: Gateway, path: str) -> None:
    error = error_of(await ask(gateway, "POST", path), 404)
    assert error["code"] == "unknown_url"
    assert error["message"].startswith(f"no such endpoint: POST {path[:300]}")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, "POST"), ("OPTIONS", CHAT, "POST"), ("POST", MODELS, "GET, HEAD")],
)
async def test_a_wrong_method_names_the_right_one(
    gateway: Gateway, method: str, path: str, allowed: str
) -> None:
    response = await ask(gateway, method, path)
    assert response.headers["allow"] == allowed
    error = error_of(response, 405)
    assert error["code"] == "method_not_allowed"
    assert error["message"] == f"{path} takes {allowed}, not {method}"


PATHS = ["/", "/page/main.js", "/health", "/ready", "/live", "/metrics"]
PATHS += [MODELS, "/v1/models/tiny", "/v1/models/other", "/openapi.json", "/none"]


@pytest.mark.parametrize("path", PATHS)
async def test_head_is_get_without_a_body(gateway: Gateway, path: str) -> None:
    got, head = [await ask(gateway, method, path) for method in ("GET", "HEAD")]
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert set(head.headers) == set(got.headers)
    assert head.headers["content-type"] == got.headers["content-type"]
    # Metrics change, and others only by their number of digits.
    if path not in ("/metrics", "/none"):
        assert head.headers["content-length"] == got.headers["content-length"]
