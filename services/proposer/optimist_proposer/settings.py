"""Settings of the proposer."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from optimist_common.settings import ServiceSettings

_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


class ProposerSettings(ServiceSettings):
    """Aligns what is generated with what was predicted, and proposes how it goes on."""

    section: ClassVar[str] = "proposer"

    model: str = Field(description="directory or hub name of the model whose tokenizer to use")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(50053, ge=0, le=65535, description="port of the gRPC service")
    store: str = Field("memory", description="memory, or the URL of a Redis that replicas share")
    algorithm: Literal["anchor", "line", "exact"] = Field(
        "anchor", description="anchor, line or exact"
    )
    window_tokens: int = Field(256, ge=2, le=65536, description="most tokens in a window")
    max_prediction_tokens: int = Field(
        262_144, ge=1, description="a longer prediction is not followed"
    )
    max_batch_size: int = Field(
        8192, ge=1, description="most opens, observations and closes in a batch together"
    )
    max_requests: int = Field(16_384, ge=1, description="most requests in the memory store")
    max_memory_mb: int = Field(
        512, ge=1, description="most memory for predictions and cursors, in MB"
    )
    key_prefix: str = Field("optimist:proposer", description="begins every Redis key")
    state_ttl_seconds: int = Field(
        3600, ge=1, description="Redis drops a request after this time without observations"
    )
    redis_timeout_ms: int = Field(50, ge=1, description="longest wait for Redis")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port of /metrics; 0 serves none")

    @field_validator("store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        if value != "memory" and not value.startswith(_REDIS_SCHEMES):
            raise ValueError("must be memory or a redis://, rediss:// or unix:// URL")
        return value
