"""Settings of the worker."""

from typing import ClassVar, Literal

from pydantic import Field

from optimist_common.errors import SetupError
from optimist_common.lookup import MOST_DRAFTS
from optimist_common.network.endpoints import is_loopback
from optimist_common.network.settings import NetworkSettings
from optimist_common.observing.settings import ObservedSettings


class WorkerSettings(NetworkSettings, ObservedSettings):
    """Holds weights and KV memory, and runs the plans of one scheduler."""

    section: ClassVar[str] = "worker"

    port: int = Field(50052, ge=0, le=65535, description="port of the gRPC service")
    model: str = Field(description="directory or hub name of the model to serve")
    dummy_weights: bool = Field(
        False,
        description="make random weights from the model's config.json, for speed tests",
    )
    device: str = Field(
        "auto",
        pattern=r"^(cpu|(auto|cuda)(:\d+)?)$",
        description="cpu, cuda, cuda:N, or auto: a GPU if there is one (auto:N: that of number N), "
        "else the CPU",
    )
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="number format: float64, float32, bfloat16, float16, or auto: on a GPU the "
        "model's own, on the CPU float32, or bfloat16 where that is exact and the model's own",
    )
    quantization: Literal["none", "int8", "int4"] = Field(
        "none",
        description="format that the weights are rounded to on a CPU, in bfloat16: none, int8, or "
        "int4 (the output matrix int8)",
    )
    block_size: int = Field(16, ge=1, le=1024, description="tokens per KV block")
    num_kv_blocks: int = Field(
        0, ge=0, le=2**24, description="number of KV blocks; 0 takes what the memory for them holds"
    )
    kv_memory_mib: int = Field(
        0,
        ge=0,
        description="most memory for KV blocks, in MiB; 0: on a GPU what gpu_memory_utilization "
        "leaves, else 512",
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0.0, le=1.0, description="share of a GPU's memory that may be in use"
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="number of slots")
    max_num_batched_tokens: int = Field(
        2048, ge=1, le=2**20, description="most tokens in one forward pass, drafts included"
    )
    max_model_len: int = Field(
        0, ge=0, description="longest sequence in tokens; 0 is what model and memory allow"
    )
    cost_seconds: float = Field(
        2.0,
        ge=0.0,
        le=60.0,
        description="most seconds to measure at start what passes cost; 0: they are taken to cost "
        "the same",
    )
    drafter: Literal["none", "ngram", "draft_model", "quantised", "medusa", "eagle"] = Field(
        "ngram",
        description="what drafts where no window does: none, ngram (a lookup in predictions and in "
        "the request's own text), draft_model, quantised, medusa or eagle",
    )
    drafter_model: str = Field(
        "",
        description="directory or hub name of the draft model or heads; empty for MODEL-draft, "
        "MODEL-medusa or MODEL-eagle",
    )
    drafter_bits: int = Field(
        8, ge=4, le=8, multiple_of=4, description="bits per weight of the quantised target: 8 or 4"
    )
    drafter_tokens: int = Field(
        0,
        ge=0,
        le=64,
        description="most drafts of a request and pass, all branches together; 0: 64 of ngram, "
        "which drafts what is likely, and 5 of others",
    )
    drafter_tree: Literal["none", "fixed", "dynamic"] = Field(
        "none",
        description="shape of the drafts: none (a chain), fixed, or dynamic (by probability)",
    )
    drafter_depth: int = Field(5, ge=1, le=16, description="levels of a tree of drafts")
    drafter_width: int = Field(
        4, ge=2, le=16, description="how many drafts of a tree's level go on, each as many ways"
    )
    drafter_kv: Literal["keep_and_rollback", "discard"] = Field(
        "keep_and_rollback",
        description="keys and values of a draft model after a step: keep_and_rollback or discard",
    )
    acceptance: Literal["coupled", "rejection"] = Field(
        "coupled",
        description="how drafts are accepted: coupled (texts are the same with and without them) "
        "or rejection (their distribution is)",
    )
    kernels: bool = Field(True, description="compute by our own kernels where they are right")
    cuda_graphs: bool = Field(True, description="capture steps as CUDA graphs on a GPU")
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="processes that share each layer, a device each"
    )
    pipeline_parallel_size: int = Field(
        1, ge=1, le=16, description="processes that the layers are divided among, a device each"
    )
    master_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="port where these processes find each other; 0 takes a free one on one machine "
        "and 29500 between pods",
    )
    num_threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0 leaves it to PyTorch")
    trace_passes: bool = Field(False, description="whether each pass of a traced request is a span")
    hang_seconds: float = Field(
        60.0, gt=0, description="a step that takes so long is taken for stuck"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port of /metrics; 0 serves none")

    @property
    def num_drafter_tokens(self) -> int:
        """Most drafts of a request and pass."""
        return self.drafter_tokens or (MOST_DRAFTS if self.drafter == "ngram" else 5)


def check_ranks(settings: WorkerSettings, master_host: str) -> None:
    """Raises SetupError if a setting does not go with several ranks that meet at a host."""
    if not (is_loopback(master_host) or settings.insecure or settings.tls_cert):
        raise SetupError(
            f"--insecure: ranks that meet at {master_host} exchange plain tensors with whoever "
            "speaks their protocol; give --insecure if the network keeps strangers out"
        )
    if settings.tensor_parallel_size > 1 and settings.pipeline_parallel_size > 1:
        raise SetupError(
            "--tensor-parallel-size: cannot be combined with --pipeline-parallel-size; set one of "
            "them to 1"
        )
    if ":" in settings.device:
        raise SetupError(
            f"--device: {settings.device} names one device, but each rank takes that of its "
            "number; give cuda, and CUDA_VISIBLE_DEVICES to choose"
        )
    if settings.tensor_parallel_size > 1:
        if settings.quantization != "none":
            raise SetupError(
                f"--quantization: {settings.quantization} rounds whole matrices, which no rank has "
                f"with --tensor-parallel-size {settings.tensor_parallel_size}; choose none"
            )
        if settings.drafter == "quantised":
            raise SetupError(
                "--drafter: quantised copies whole matrices, which no rank has with "
                f"--tensor-parallel-size {settings.tensor_parallel_size}; choose ngram, "
                "draft_model, medusa or eagle"
            )
        if settings.dummy_weights:
            raise SetupError(
                "--dummy-weights: cannot be combined with --tensor-parallel-size; leave one out"
            )
    if settings.pipeline_parallel_size > 1 and settings.drafter in ("quantised", "medusa", "eagle"):
        raise SetupError(
            f"--drafter: {settings.drafter} needs the weights or last features of the whole model, "
            f"which no stage has with --pipeline-parallel-size {settings.pipeline_parallel_size}; "
            "choose none, ngram or draft_model"
        )
