"""Errors of calls."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import grpc

from optimist_client.answer import Result


class OptimistError(Exception):
    """A call that failed."""

    def __init__(
        self,
        message: str,
        *,
        status: str,
        code: str,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Describes the failure.

        Args:
            message: What is wrong.
            status: gRPC's status, such as `INVALID_ARGUMENT`.
            code: The server's word for programs, such as `invalid_value`; the status in lower case
                if there is none.
            field: The field of the request that is wrong, such as `sampling.top_p`.
            retry_after: After how many seconds the server asks to try again.
        """
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.field = field
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


class BatchError(OptimistError):
    """Some requests of a batch failed; status, code and field are those of the first one."""

    def __init__(
        self, results: Sequence[Result | None], errors: Mapping[int, OptimistError]
    ) -> None:
        """Describes the failures.

        Args:
            results: The results by index of the request; None where it failed.
            errors: What failed, by index of the request, in order; at least one.
        """
        index, first = next(iter(errors.items()))
        more = f" (and {len(errors) - 1} more prompts failed)" if len(errors) > 1 else ""
        super().__init__(
            f"prompt {index}: {first.message}{more}",
            status=first.status,
            code=first.code,
            field=first.field,
            retry_after=first.retry_after,
        )
        self.results = results
        self.errors = errors


def error_of(error: grpc.RpcError) -> OptimistError:
    """Returns what a failed call of gRPC says."""
    metadata = _texts(error.trailing_metadata() or ())
    status = error.code().name
    return OptimistError(
        error.details() or "",
        status=status,
        code=metadata.get("optimist-error-code", status.lower()),
        field=metadata.get("optimist-error-field"),
        retry_after=_seconds(metadata.get("retry-after")),
    )


def incomplete() -> OptimistError:
    """Returns the error for a stream that ended without its summary."""
    return OptimistError("the answer broke off", status="INTERNAL", code="incomplete")


def cancelled() -> OptimistError:
    """Returns the error for a call that this client cancelled."""
    return OptimistError("the call was cancelled", status="CANCELLED", code="cancelled")


def _texts(metadata: Iterable[Any]) -> dict[str, str]:
    """Returns the pairs whose values are texts."""
    return {key: value for key, value in metadata if isinstance(value, str)}


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def is_being_cancelled() -> bool:
    """Returns whether somebody has cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
