"""Errors as statuses of gRPC, and metadata of calls."""

from typing import Any, Never, TypeAlias

import grpc

from optimist_gateway.core.error import RETRY_SECONDS, ApiError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def abort(context: Context, error: ApiError) -> Never:
    """Ends a call with an error; never returns."""
    await context.abort(status_code(error), error.message, trailing_metadata(error))
    raise AssertionError("a call was aborted and goes on")


def status_code(error: ApiError) -> grpc.StatusCode:
    """Returns gRPC's status for an error."""
    return _CODES.get(error.status, grpc.StatusCode.INTERNAL)


def trailing_metadata(error: ApiError) -> tuple[tuple[str, str], ...]:
    """Returns what of an error is for programs."""
    metadata = {}
    if error.code is not None:
        metadata["optimist-error-code"] = error.code
    if error.param is not None:
        # A name may have a key of the request's own in it; metadata is printable ASCII.
        metadata["optimist-error-field"] = error.param.encode("unicode_escape").decode()
    if error.status in (429, 503):
        seconds = RETRY_SECONDS if error.retry_seconds is None else error.retry_seconds
        metadata["retry-after"] = f"{seconds:.3f}"
    return tuple(metadata.items())


def trace_parent(context: Context) -> str:
    """Returns the W3C traceparent among a call's metadata; empty without exactly one."""
    values = [value for name, value in context.invocation_metadata() or () if name == "traceparent"]
    return str(values[0]) if len(values) == 1 else ""
