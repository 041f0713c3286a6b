"""Which settings go with several ranks.

It imports no torch, so that who starts ranks can check settings first.
"""

from optimist_common.errors import SetupError
from optimist_common.network.address import is_loopback
from optimist_worker.settings import WorkerSettings

_FLAG = "--tensor-parallel-size"


def check_settings(settings: WorkerSettings, master_host: str) -> None:
    """Raises SetupError if a setting does not go with several ranks that meet at a host."""
    if not (is_loopback(master_host) or settings.insecure or settings.tls_cert):
        raise SetupError(
            f"--insecure: ranks that meet at {master_host} exchange plain tensors with whoever "
            "speaks their protocol; give --insecure true if the network keeps strangers out"
        )
    if settings.tensor_parallel_size > 1 and settings.pipeline_parallel_size > 1:
        raise SetupError(
            f"{_FLAG}: cannot be combined with --pipeline-parallel-size; set one of them to 1"
        )
    if ":" in settings.device:
        raise SetupError(
            f"--device: {settings.device} names one device, but each rank takes that of its "
            "number; give cuda, and CUDA_VISIBLE_DEVICES to choose"
        )
    if settings.tensor_parallel_size > 1:
        if settings.drafter == "quantised":
            raise SetupError(
                f"--drafter: quantised copies whole matrices, which no rank has with {_FLAG} "
                f"{settings.tensor_parallel_size}; choose ngram, draft_model, medusa or eagle"
            )
        if settings.dummy_weights:
            raise SetupError(f"--dummy-weights: cannot be combined with {_FLAG}; leave one out")
    if settings.pipeline_parallel_size > 1 and settings.drafter in ("quantised", "medusa", "eagle"):
        raise SetupError(
            f"--drafter: {settings.drafter} needs the weights or last features of the whole model, "
            f"which no stage has with --pipeline-parallel-size {settings.pipeline_parallel_size}; "
            "choose none, ngram or draft_model"
        )
