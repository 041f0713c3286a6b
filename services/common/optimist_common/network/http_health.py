"""Asks a gateway on this machine whether it serves; also `python -m ...http_health URL`."""

import ssl
import sys
import urllib.request
from functools import cache
from http.client import HTTPException

TIMEOUT_SECONDS = 4.0


def answers(url: str, timeout: float) -> bool:
    """Returns whether a GET of a URL is answered with 200; waits for `timeout` seconds at most.

    It asks without a proxy. A certificate need not name the address: it is for clients elsewhere.
    """
    try:
        with _opener().open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (HTTPException, OSError):
        # Also where something listens that speaks no HTTP.
        return False


@cache
def _opener() -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )


def main(arguments: list[str]) -> int:
    """Runs the command line; returns 0 if the URL is answered with 200, 1 if not, 2 without one."""
    if len(arguments) != 1:
        print("usage: python -m optimist_common.network.http_health URL", file=sys.stderr)  # noqa: T201
        return 2
    if answers(arguments[0], TIMEOUT_SECONDS):
        return 0
    print(f"{arguments[0]} is not answered", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
