"""Settings of the engine service."""

from typing import ClassVar, Literal

from pydantic import Field

from optimist_common.network.settings import NetworkSettings
from optimist_common.observing.settings import ObservedSettings
from optimist_common.request_log.settings import RequestLogSettings


class EngineSettings(NetworkSettings, ObservedSettings, RequestLogSettings):
    """Serves a model by vLLM to gateways: optimist engine MODEL [OPTIONS] [-- FLAGS of vLLM]."""

    section: ClassVar[str] = "engine"
    arguments: ClassVar[tuple[str, ...]] = ("model",)

    port: int = Field(50051, ge=0, le=65535, description="port of the gRPC service")
    model: str = Field(description="model directory or hub name")
    num_speculative_tokens: int = Field(
        64,
        ge=0,
        le=128,
        description="most drafts of a request and pass, unless vLLM's flags have "
        "--speculative-config; 0 for no speculation",
    )
    max_num_waiting: int = Field(
        2048, ge=1, description="requests that run or wait at once; more are refused as too many"
    )
    hang_seconds: float = Field(
        120.0, gt=0, description="if no pass ends for so long, vLLM is taken for stuck"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    metrics_port: int = Field(
        0, ge=0, le=65535, description="port of /metrics, vLLM's among them; 0 serves none"
    )
