"""Settings of the proposer."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from optimist_common.network.settings import NetworkSettings
from optimist_common.observing.settings import ObservedSettings
from optimist_common.request_log.settings import RequestLogSettings
from optimist_proposer.store.redis_url import SCHEMES


class ProposerSettings(NetworkSettings, ObservedSettings, RequestLogSettings):
    """Aligns what is generated with what was predicted, and proposes how it goes on."""

    section: ClassVar[str] = "proposer"

    model: str = Field(description="directory or hub name of the model whose tokenizer to use")
    port: int = Field(50053, ge=0, le=65535, description="port of the gRPC service")
    store: str = Field("memory", description="memory, or the URL of a Redis that replicas share")
    algorithm: Literal["auto", "line"] = Field("auto", description="auto or line")
    min_value: float = Field(
        0.02, ge=0, lt=1, description="least chance of a token that is sent in a window"
    )
    max_predictions: int = Field(16, ge=1, description="most predictions of a request")
    max_prediction_tokens: int = Field(
        524_288, ge=1, description="most tokens of a request's predictions together"
    )
    max_prediction_lines: int = Field(
        131_072, ge=1, description="most lines of a request's predictions together"
    )
    max_prediction_bytes: int = Field(
        2_097_152, ge=1, description="most bytes of text of a request's predictions together"
    )
    prompt_tokens: int = Field(
        131_072, ge=0, description="how many of the prompt's last tokens are a source too"
    )
    max_alignment_ms: int = Field(
        2000,
        ge=1,
        description="most CPU time on a request, in ms, at first and again for 1000 output tokens",
    )
    max_requests: int = Field(16_384, ge=1, description="most requests in memory")
    max_memory_mb: int = Field(512, ge=1, description="most memory for requests, in MB")
    key_prefix: str = Field("optimist:proposer", description="begins every Redis key")
    state_ttl_seconds: int = Field(
        600, ge=1, description="Redis drops a request after this time without observations"
    )
    redis_timeout_ms: int = Field(50, ge=1, description="longest wait for Redis")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug says how each request is aligned"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port of /metrics; 0 serves none")

    @field_validator("store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        if value != "memory" and not value.startswith(SCHEMES):
            raise ValueError(
                f"must be memory or a URL that begins with one of {', '.join(SCHEMES)}"
            )
        return value

    @field_validator("key_prefix")
    @classmethod
    def _plain_prefix(cls, value: str) -> str:
        if "{" in value or "}" in value:
            raise ValueError("must not contain braces, which choose the slot in a cluster")
        return value
