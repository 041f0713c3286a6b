"""A model in one Python object: the services start with it and end with it."""

import os
import secrets
import socket
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self, cast

from optimist_client.answer import Result
from optimist_client.batch import run_batch
from optimist_client.client import Client
from optimist_client.request import Message, Options, Prompt, SamplingParams
from optimist_client.retry import RetryPolicy
from optimist_client.serve_process import ServeProcess

Conversation = Sequence[Message | Mapping[str, str]]
"""Messages, or mappings with `role` and `content`."""

Params = SamplingParams | Options
"""What a request asks for, as an object or a dict."""

_HOST = "127.0.0.1"
_CHOSEN = ("model", "host", "port", "grpc_port", "api_key", "end_with_stdin")
# A batch waits for a service that restarts and for its share of a full server.
_RETRIES = RetryPolicy(max_retries=8)


class LLM:
    """A served model: all services on the loopback of this machine, for this process alone.

    The services end with `close`, with the `with` block, with this object, and with this process,
    however that ends.
    """

    def __init__(self, model: str | os.PathLike[str], **options: str | float | bool) -> None:
        """Starts the services and returns when the model can be asked.

        Args:
            model: A model directory, a GGUF file or a hub name, as for `optimist serve`.
            options: Options of `optimist serve`, such as `dtype="bfloat16"`, `device="cuda"`,
                `max_model_len=8192`, `num_speculative_tokens=0` or `config="FILE"`.

        Raises:
            TypeError: An option is one that this class chooses itself.
            RuntimeError: The services could not start; the message says why.
        """
        for name in _CHOSEN:
            if name in options:
                raise TypeError(f"LLM chooses {name} itself")
        port, grpc_port = _free_ports(2)
        flags = options | {"host": _HOST, "port": port, "grpc_port": grpc_port}
        words = [_flag(name.replace("_", "-"), value) for name, value in flags.items()]
        key = secrets.token_urlsafe(32)
        self._services = ServeProcess([os.fspath(model), *words], _environment(key))
        self._client = Client(f"{_HOST}:{grpc_port}", api_key=key, timeout=None, retries=_RETRIES)
        self._end = weakref.finalize(self, _end, self._client, self._services, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the services; does nothing if they have ended."""
        self._end()

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: Params | Sequence[Params] | None = None,
    ) -> list[Result]:
        """Continues prompts, many at once.

        Args:
            prompts: Texts or lists of token ids, or a single one.
            sampling_params: For all prompts, or one for each, such as with its own `prediction`.

        Returns:
            The results in the order of the prompts.

        Raises:
            TypeError: An option is unknown or has a wrong type; nothing was generated.
            ValueError: There are not as many `sampling_params` as prompts, or a number does not
                fit its field; nothing was generated.
            BatchError: Some prompts failed; the results of the others are in it.
            RuntimeError: The services have ended, or this object is closed.
        """
        is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        several = cast("Sequence[str | Sequence[int]]", [prompts] if is_one else prompts)
        return self._run(several, sampling_params)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params | Sequence[Params] | None = None,
    ) -> list[Result]:
        """Answers conversations by the model's chat template; otherwise as `generate`.

        Args:
            messages: Conversations, or a single one.
            sampling_params: For all conversations, or one for each.

        Returns:
            The results in the order of the conversations.
        """
        is_one = len(messages) > 0 and isinstance(messages[0], Message | Mapping)
        conversations = cast("Sequence[Conversation]", [messages] if is_one else messages)
        return self._run([_messages(each) for each in conversations], sampling_params)

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params | Sequence[Params] | None,
    ) -> list[Result]:
        if not self._end.alive:
            raise RuntimeError("the LLM is closed")
        self._services.require_running()
        if sampling_params is None or isinstance(sampling_params, SamplingParams | Mapping):
            params: Sequence[Params] = [sampling_params or {}] * len(prompts)
        else:
            params = sampling_params
        if len(params) != len(prompts):
            raise ValueError(f"sampling_params: {len(params)} for {len(prompts)} prompts")
        options = [one.options() if isinstance(one, SamplingParams) else one for one in params]
        requests = list(zip(prompts, options, strict=True))
        return run_batch(self._client, requests, self._services.require_running)


def _flag(name: str, value: str | float) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def _messages(conversation: Conversation) -> list[Message]:
    return [each if isinstance(each, Message) else Message(**each) for each in conversation]


def _free_ports(number: int) -> list[int]:
    """Returns ports of the loopback that the system says are free."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((_HOST, 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]


def _environment(key: str) -> dict[str, str]:
    """Returns the environment of the services: plain on the loopback, and closed to others.

    Args:
        key: The only key that the gateway accepts.
    """
    return os.environ | {
        "OPTIMIST_GATEWAY_API_KEYS": key,
        "OPTIMIST_GATEWAY_API_KEYS_FILE": "",
        "OPTIMIST_GATEWAY_HTTPS_CERT": "",
        "OPTIMIST_GATEWAY_HTTPS_KEY": "",
    }


def _end(client: Client, services: ServeProcess, owner: int) -> None:
    # A fork inherits this object, and the services are its parent's.
    if os.getpid() == owner:
        client.close()
        services.stop()
