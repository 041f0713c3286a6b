"""Settings of the gateway."""

import json
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from optimist_common.network.endpoints import Addresses, is_loopback
from optimist_common.network.settings import NetworkSettings
from optimist_common.observing.settings import ObservedSettings
from optimist_common.settings import CommaSeparated
from optimist_gateway.structure.tool_format import ToolCallFormat


class ModelSettings(BaseModel):
    """One model: where its tokenizer and its schedulers are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    name: str = ""
    schedulers: Addresses = Field(min_length=1)
    tool_call_format: ToolCallFormat = "auto"

    @property
    def served_name(self) -> str:
        """The name by which requests ask for the model."""
        return self.name or self.model.rstrip("/").rsplit("/", 1)[-1]


def _parse_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"must be a list in JSON ({error})") from None


class GatewaySettings(NetworkSettings, ObservedSettings):
    """Starts the gateway: the OpenAI-compatible REST API in front of schedulers."""

    section: ClassVar[str] = "gateway"
    peers: ClassVar[tuple[str, ...]] = ("schedulers",)

    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    grpc_port: int = Field(
        0, ge=0, le=65535, description="port of the gRPC API, on the same address; 0 serves none"
    )
    model: str = Field("", description="model directory or hub name; its tokenizer is used")
    served_model_name: str = Field(
        "", description="name in the API; empty for the last part of --model"
    )
    schedulers: Addresses = Field(
        ["127.0.0.1:50051"],
        min_length=1,
        description="host:port of the schedulers, with commas; each address of a name is one",
    )
    models: Annotated[list[ModelSettings], BeforeValidator(_parse_json)] = Field(
        [],
        description="further models, or all without --model, as a list in JSON: "
        '[{"model": "DIR", "name": "NAME", "schedulers": ["HOST:PORT"], '
        '"tool_call_format": "auto"}]; name and tool_call_format may be left out',
    )
    resume_seconds: float = Field(
        30.0, ge=0, description="how long a request whose scheduler was lost waits for another one"
    )
    max_body_bytes: int = Field(8 * 1024 * 1024, ge=1, description="longest request body, in bytes")
    max_num_requests: int = Field(
        512, ge=1, le=65536, description="requests in progress, each choice of n one; 429 for more"
    )
    max_num_requests_per_key: int = Field(
        0, ge=0, description="requests in progress of one API key, counted the same; 0: no limit"
    )
    requests_per_minute: int = Field(0, ge=0, description="requests of one API key; 0: no limit")
    tokens_per_minute: int = Field(
        0, ge=0, description="tokens of prompts and answers of one API key; 0: no limit"
    )
    max_n: int = Field(
        16, ge=1, le=128, description="largest n, if --max-num-requests is not smaller"
    )
    max_prompts: int = Field(
        128, ge=1, le=1024, description="largest number of prompts of a /v1/completions request"
    )
    max_prediction_bytes: int = Field(
        2 * 1024 * 1024, ge=1, description="longest predictions of a request together, in bytes"
    )
    max_num_connections: int = Field(
        2048, ge=1, description="open connections; more are answered 503 and closed"
    )
    max_header_bytes: int = Field(
        32 * 1024, ge=1024, description="longest request line and headers together, in bytes"
    )
    read_seconds: float = Field(
        60.0, gt=0, description="how long a client may take to send its headers, and then its body"
    )
    slow_reader_seconds: float = Field(
        30.0, gt=0, description="a client that reads nothing for this long is dropped"
    )
    write_interval_seconds: float = Field(
        0.005,
        ge=0,
        le=1,
        description="least time between two writes of a stream to its connection; what comes "
        "meanwhile is sent together",
    )
    keep_alive_seconds: float = Field(
        15.0, gt=0, description="silence after which a stream gets a comment, for proxies"
    )
    tool_call_format: ToolCallFormat = Field(
        "auto",
        description="how the model writes tool calls: hermes, llama3, mistral, mistral_args, json "
        "(for models that know no tools) or auto, which goes by the chat template",
    )
    split_reasoning: bool = Field(
        True,
        description="whether what a model thinks before it answers comes apart from the answer, as "
        "reasoning_content",
    )
    template_seconds: float = Field(
        10.0, gt=0, description="how long the chat template may take for one prompt"
    )
    api_keys: CommaSeparated = Field(
        [],
        description="keys of clients: name:key, key, name:sha256 or sha256, with commas; better "
        "in a variable or file than as a flag",
    )
    api_keys_file: str = Field(
        "", description="file with such a key on each line; followed when it changes"
    )
    admin_keys: CommaSeparated = Field([], description="keys for /admin, written the same")
    admin_keys_file: str = Field("", description="file with keys for /admin")
    public_metrics: bool = Field(False, description="whether /metrics needs no key where others do")
    allowed_origins: CommaSeparated = Field(
        [], description="origins whose pages may call the API from browsers (CORS); none"
    )
    allowed_hosts: CommaSeparated = Field(
        [],
        description="names that clients may call the gateway by, with commas, *.NAME for all below "
        "one and * for any; addresses, localhost, --host and this machine's name always may. "
        "Without such a list any name will do where keys are asked for",
    )
    https_cert: str = Field("", description="PEM file with the certificate that clients see")
    https_key: str = Field("", description="PEM file with its key")
    page: bool = Field(True, description="whether to serve the page at /")
    grace_seconds: int = Field(
        4, ge=0, description="how long running requests may take to finish at the end"
    )
    drain_seconds: int = Field(
        0, ge=0, description="how long to answer 503 at the end even if nothing runs any more"
    )
    log_level: str = Field(
        "info",
        pattern="^(?i:debug|info|warning|error|critical)$",
        description="debug, info, warning, error or critical",
    )
    access_log: bool = Field(
        False, description="whether to log a line for each request, without its texts"
    )

    @model_validator(mode="after")
    def _https_is_whole(self) -> Self:
        if bool(self.https_cert) is not bool(self.https_key):
            raise ValueError("--https-cert and --https-key must be given together")
        return self

    @model_validator(mode="after")
    def _has_models(self) -> Self:
        if not self.model:
            if not self.models:
                raise ValueError("--model is required (see --help)")
            of_model = {"served_model_name", "schedulers", "tool_call_format"}
            for name in sorted(of_model & self.model_fields_set):
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag}: is about --model, which is not given")
        taken: dict[str, str] = {}
        for flag, one in self.served_models().items():
            for what in (f"name {one.served_name}", *(f"scheduler {at}" for at in one.schedulers)):
                if what in taken:
                    raise ValueError(f"{flag}: its {what} is that of {taken[what]} too")
                taken[what] = flag
        return self

    def _require_protected_host(self) -> None:
        """Raises ValueError if strangers could ask the gateway."""
        if not is_loopback(self.host) and not (self.api_keys or self.api_keys_file):
            raise ValueError(
                f"--host: {self.host} can be reached by others: give --api-keys-file, or "
                "--insecure if anybody may ask"
            )

    def served_models(self) -> dict[str, ModelSettings]:
        """Returns all models by the flags that name them, the default one first."""
        models = {f"--models[{index}]": one for index, one in enumerate(self.models)}
        if not self.model:
            return models
        first = ModelSettings(
            model=self.model,
            name=self.served_model_name,
            schedulers=self.schedulers,
            tool_call_format=self.tool_call_format,
        )
        return {"--model": first, **models}

    def peer_addresses(self) -> dict[str, Sequence[str]]:
        """Returns the addresses of all models' schedulers, by the flags that name them."""
        further = {
            f"--models[{index}].schedulers": one.schedulers for index, one in enumerate(self.models)
        }
        return {**super().peer_addresses(), **further}
