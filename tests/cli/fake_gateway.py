"""What answers as a gateway does."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from optimist_common.network.endpoints import join_address
from tests.certificates import Certificate


@contextmanager
def serving(
    events: Sequence[Any],
    asked: list[Any],
    host: str = "127.0.0.1",
    models: str = '{"data": [{"id": "tiny"}]}',
    certificate: Certificate | None = None,
    api_key: str | None = None,
) -> Iterator[str]:
    """Answers as a gateway does that serves the model `tiny`, or says something else of models.

    With a certificate it does so by HTTPS; with a key, only to those who show it.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(models)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.reply("".join(f"data: {json.dumps(one)}\n\n" for one in events))

        def reply(self, text: str) -> None:
            shown = self.headers["authorization"]
            is_known = api_key is None or shown == f"Bearer {api_key}"
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Says nothing."""

    class Server(HTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    with Server((host, 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.cert, certificate.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            scheme = "http" if certificate is None else "https"
            yield f"{scheme}://{join_address(host, server.server_port)}"
        finally:
            server.shutdown()
            thread.join()
