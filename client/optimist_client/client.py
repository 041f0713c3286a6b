"""The client for plain Python."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from optimist.v1 import inference_pb2, inference_pb2_grpc
from optimist_client.answer import Model
from optimist_client.connection import OPTIONS, Connection
from optimist_client.errors import error_of
from optimist_client.request import Options, Prompt, generate_request
from optimist_client.response import model_of
from optimist_client.retry import Deadline, RetryPolicy
from optimist_client.stream import Stream

T = TypeVar("T")


class Client:
    """A connection to a gateway; threads may share it."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        timeout: float | None = 600.0,
        retries: RetryPolicy | None = None,
    ) -> None:
        """Prepares a connection, which is made with the first call.

        Args:
            address: The gateway's host:grpc_port.
            api_key: Sent with every call.
            credentials: For TLS, from `grpc.ssl_channel_credentials`; None connects without.
            timeout: Seconds until a call is ended, retries included; None waits for ever.
            retries: When calls are made again.
        """
        self._connection = Connection(
            api_key=api_key, timeout=timeout, retries=retries or RetryPolicy()
        )
        self._channel = (
            grpc.insecure_channel(address, OPTIONS)
            if credentials is None
            else grpc.secure_channel(address, credentials, OPTIONS)
        )
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

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
        """Ends all calls and the connection."""
        self._channel.close()

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Asks for answers to a prompt.

        Args:
            prompt: A text that is continued, tokens, or messages of a conversation.
            options: See `Options`.

        Raises:
            TypeError: There is no such option, or a value has a wrong type.
            ValueError: A number does not fit its field.
        """
        request = generate_request(prompt, options)
        metadata = self._connection.metadata()
        return Stream(
            lambda timeout: self._stub.Generate(request, timeout=timeout, metadata=metadata),
            Deadline.after(options.get("timeout", self._connection.timeout)),
            self._connection.retries,
        )

    def models(self) -> list[Model]:
        """Returns the models that are served; raises OptimistError if the call fails."""
        request = inference_pb2.ListModelsRequest()
        response = self._call(
            lambda timeout: self._stub.ListModels(
                request, timeout=timeout, metadata=self._connection.metadata()
            )
        )
        return [model_of(model) for model in response.models]

    def model(self, name: str = "") -> Model:
        """Describes a model, the one that is served if none is named.

        Raises:
            OptimistError: The call failed; status NOT_FOUND if there is no such model.
        """
        request = inference_pb2.GetModelRequest(name=name)
        response = self._call(
            lambda timeout: self._stub.GetModel(
                request, timeout=timeout, metadata=self._connection.metadata()
            )
        )
        return model_of(response.model)

    def set_priority(self, request_id: str, priority: int) -> int:
        """Changes how urgent a request in progress is; needs an admin key.

        Args:
            request_id: `request_id` of a stream, or the id of a REST answer.
            priority: The smaller, the sooner.

        Returns:
            How many answers of the request are in progress.

        Raises:
            OptimistError: The call failed; status NOT_FOUND if no such request is in progress,
                INVALID_ARGUMENT if the scheduler's policy is not `priority`.
            ValueError: The priority does not fit its field.
        """
        request = inference_pb2.SetPriorityRequest(request_id=request_id, priority=priority)
        response = self._call(
            lambda timeout: self._stub.SetPriority(
                request, timeout=timeout, metadata=self._connection.metadata()
            )
        )
        return response.num_choices

    def _call(self, start: Callable[[float | None], T]) -> T:
        deadline = Deadline.after(self._connection.timeout)
        num_retries = 0
        while True:
            try:
                return start(deadline.remaining())
            except grpc.RpcError as error:
                failure = error_of(error)
            wait = self._connection.retries.wait_seconds(failure, num_retries, deadline.remaining())
            if wait is None:
                raise failure
            time.sleep(wait)
            num_retries += 1
