"""Settings of the gateway."""

from typing import ClassVar

from pydantic import Field

from optimist_common.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """Starts the gateway: the OpenAI-compatible REST API in front of a scheduler."""

    section: ClassVar[str] = "gateway"

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    model: str = Field(description="model directory or hub name; its tokenizer is used")
    served_model_name: str = Field(
        "", description="name in the API; empty for the last part of --model"
    )
    scheduler: str = Field("127.0.0.1:50051", description="host:port of the scheduler")
    max_body_bytes: int = Field(8 * 1024 * 1024, ge=1, description="longest request body, in bytes")
    max_num_requests: int = Field(
        512,
        ge=1,
        le=65536,
        description="requests in progress, each choice of n counted; more are answered 429",
    )
    max_n: int = Field(
        16, ge=1, le=128, description="largest n, if --max-num-requests is not smaller"
    )
    max_prediction_bytes: int = Field(
        2 * 1024 * 1024,
        ge=1,
        description="longest predictions of one request together, in bytes of text",
    )
    page: bool = Field(True, description="whether to serve the page at /")
    grace_seconds: int = Field(
        4, ge=0, description="how long running requests may take to finish at the end"
    )
    log_level: str = Field(
        "info",
        pattern="^(?i:debug|info|warning|error|critical)$",
        description="debug, info, warning, error or critical",
    )

    @property
    def model_name(self) -> str:
        """The name by which requests ask for the model."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]
