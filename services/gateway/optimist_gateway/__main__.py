"""Starts the gateway."""

import asyncio
import gc
import logging
import signal
import sys

from optimist_common.errors import run_or_explain
from optimist_common.network.server import bind, require_free, run_service
from optimist_common.observing.logs import configure_logging
from optimist_common.process import hide_torch
from optimist_common.settings import load_settings
from optimist_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Runs the gateway until SIGTERM; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_or_explain("optimist gateway", lambda: _start(words))


def _start(arguments: list[str]) -> None:
    settings = load_settings(GatewaySettings, arguments)
    configure_logging(settings.log_level, settings.log_format, settings.section)
    listener = bind(settings.host, settings.port)
    if settings.grpc_port:
        require_free(settings.host, settings.grpc_port, "--grpc-port")
    hide_torch()
    # Loading a tokenizer takes seconds; a wrong flag or port should not.
    from optimist_gateway.server.app import create_app
    from optimist_gateway.server.http_server import DrainingServer, server_config
    from optimist_gateway.text.tokenizer import load_tokenizer

    models = settings.served_models()
    tokenizers = [
        load_tokenizer(one.model, one.tool_call_format, settings.template_seconds, flag)
        for flag, one in models.items()
    ]
    app = create_app(settings, tokenizers)
    server = DrainingServer(server_config(app, settings), app, settings)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, app.state.keys.reload)
        # What is here now stays: requests need not wait while the collector walks all of it. It
        # waits for a quarter more than it found last, which is little now.
        gc.freeze()
        gc.collect()
        await server.serve(sockets=[listener])

    # uvicorn raises a signal again once it has shut down; the exit code would not be 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    names = ", ".join(one.served_name for one in models.values())
    logger.info("serving %s on %s:%d", names, *listener.getsockname()[:2])
    run_service(serve)


if __name__ == "__main__":
    sys.exit(main())
