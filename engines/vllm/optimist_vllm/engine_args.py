"""vLLM's arguments: naming `Proposer` brings the scheduler and the front end's part too."""

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from optimist_vllm import interface
from optimist_vllm.proposer import SCHEDULER

MODEL = "optimist_vllm.Proposer"
MOST_DRAFTS = 128
"""Of a row; vLLM's rejection sampler takes no more."""


@cache
def install() -> None:
    """Wraps `EngineArgs.create_engine_config`, once."""
    from vllm.engine.arg_utils import EngineArgs

    EngineArgs.create_engine_config = _wrap(EngineArgs.create_engine_config)


def _wrap(create: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.speculative_config
        if isinstance(config, dict) and str(config.get("model")).startswith("optimist_vllm."):
            check(self, config)
            self.scheduler_cls = SCHEDULER
            from optimist_vllm import front_end

            front_end.install()
        return create(self, *args, **kwargs)

    return create_engine_config


def check(engine_args: Any, speculative_config: dict[str, Any]) -> None:
    """Checks that the plugin can do its work.

    Raises:
        ValueError: Something that was asked for does not go with it.
        RuntimeError: This vLLM is not as the plugin knows it.
    """
    model = speculative_config["model"]
    if model != MODEL:
        raise ValueError(f"optimist-vllm: --speculative-config: model is {MODEL}, not {model}")
    if engine_args.pipeline_parallel_size > 1:
        raise ValueError(
            "optimist-vllm: --pipeline-parallel-size: vLLM does not verify drafts across stages;"
            " use --tensor-parallel-size or serve without the plugin"
        )
    if engine_args.scheduler_cls not in (None, SCHEDULER):
        raise ValueError(
            f"optimist-vllm: --scheduler-cls: {engine_args.scheduler_cls} was asked for, but drafts"
            f" come from {SCHEDULER}; leave the flag out"
        )
    if engine_args.skip_tokenizer_init:
        raise ValueError(
            "optimist-vllm: --skip-tokenizer-init: the texts of tokens are needed; leave it out"
        )
    num_drafts = speculative_config.get("num_speculative_tokens")
    if isinstance(num_drafts, int) and num_drafts > MOST_DRAFTS:
        raise ValueError(
            f"optimist-vllm: num_speculative_tokens: vLLM verifies at most {MOST_DRAFTS} drafts of"
            f" a request at a time, not {num_drafts}"
        )
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        raise ValueError(
            "optimist-vllm: VLLM_USE_RUST_FRONTEND: that front end drops the field prediction;"
            " leave it out"
        )
    check_version(interface.PLUGIN)


def check_version(needed: interface.Interface) -> None:
    """Raises RuntimeError if this vLLM is not as it is needed; warns if it was not tried."""
    from vllm import __version__ as found

    faults = interface.find_faults(needed, interface.read_interface(needed, files("vllm")))
    known = " and ".join(interface.SUPPORTED)
    if faults:
        raise RuntimeError(
            f"optimist-vllm {version('optimist-vllm')} knows vLLM {known}; in {found}"
            f" {'; '.join(faults)}: pip install -U optimist-vllm, or serve without it"
        )
    if not found.startswith(tuple(f"{each}." for each in interface.SUPPORTED)):
        from vllm.logger import init_logger

        init_logger("vllm.optimist_vllm").warning(
            "optimist-vllm %s was tried with vLLM %s, not with %s; what it builds on is the same",
            version("optimist-vllm"),
            known,
            found,
        )
