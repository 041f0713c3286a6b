"""The trace that a call belongs to."""

from optimist_gateway.fronts.grpc.status import Context


def trace_parent(context: Context) -> str:
    """Returns the W3C traceparent among a call's metadata; empty without exactly one."""
    values = [value for name, value in context.invocation_metadata() or () if name == "traceparent"]
    return str(values[0]) if len(values) == 1 else ""
