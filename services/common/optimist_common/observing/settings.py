"""Settings of every service about what it shows of itself."""

from typing import Literal

from pydantic import Field, field_validator

from optimist_common.observing.tracing import Tracer
from optimist_common.settings import ServiceSettings

_SCHEMES = ("http://", "https://")


class ObservedSettings(ServiceSettings):
    """Settings of a service that writes logs and spans."""

    log_format: Literal["text", "json"] = Field(
        "text", description="text, or json with an object for each line"
    )
    otlp_endpoint: str = Field(
        "", description="where spans go by OTLP/gRPC, such as http://127.0.0.1:4317; empty: nowhere"
    )
    trace_sample_ratio: float = Field(
        1.0, ge=0, le=1, description="share of traces to record, of those that begin here"
    )

    def tracer(self) -> Tracer:
        """Returns what starts the service's spans; raises SetupError without OpenTelemetry."""
        return Tracer(self.section, self.otlp_endpoint, self.trace_sample_ratio)

    @field_validator("otlp_endpoint")
    @classmethod
    def _has_scheme(cls, value: str) -> str:
        if value and not value.startswith(_SCHEMES):
            raise ValueError("must begin with http:// or https://")
        return value
