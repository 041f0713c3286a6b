"""vLLM starts with the plugin, or says in one line why not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

import optimist_vllm
from optimist_vllm import interface, repairs
from optimist_vllm.proposer import SCHEDULER, Proposer

optimist_vllm.register()
MISSPELT = "optimist_vllm.Propser"
NOT_MISSPELT = r"model is optimist_vllm\.Proposer, not optimist_vllm\.Propser"


def config(num_drafts: int = 64) -> dict[str, Any]:
    return {"model": "optimist_vllm.Proposer", "num_speculative_tokens": num_drafts}


def test_the_flag_brings_the_scheduler_and_without_it_nothing_changes() -> None:
    assert EngineArgs(config()).create_engine_config().scheduler_cls == SCHEDULER
    for speculative in (None, {"model": "ngram"}, {"method": "ngram"}):
        args = EngineArgs(speculative, pipeline_parallel_size=2, scheduler_cls="other.Scheduler")
        assert args.create_engine_config().scheduler_cls == "other.Scheduler"


def test_refuses_what_does_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: dict[str, dict[str, Any]] = {
        "--pipeline-parallel-size: .* use --tensor-parallel-size": {"pipeline_parallel_size": 2},
        r"--scheduler-cls: other\.Scheduler .* leave": {"scheduler_cls": "other.Scheduler"},
        "--skip-tokenizer-init: .* leave it out": {"skip_tokenizer_init": True},
        f"--speculative-config: {NOT_MISSPELT}": {"speculative_config": {"model": MISSPELT}},
        "num_speculative_tokens: .* at most 128 .* not 129": {"speculative_config": config(129)},
    }
    for message, wrong in refused.items():
        args = EngineArgs(**{"speculative_config": config(), **wrong})
        with pytest.raises(ValueError, match=f"^optimist-vllm: {message}"):
            args.create_engine_config()
    # A front end that drops the field.
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(ValueError, match=r"VLLM_USE_RUST_FRONTEND: .* leave it out"):
        EngineArgs(config()).create_engine_config()


def test_refuses_a_vllm_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "v1/core/sched/scheduler.py:Scheduler.add_request"
    functions = {**interface.PLUGIN.functions, name: ["self", "request", "more"]}
    monkeypatch.setattr(interface, "PLUGIN", replace(interface.PLUGIN, functions=functions))
    expected = rf"knows vLLM 0\.32 and 0\.33; in 0\.33\.0 {name} takes \(self, request\): pip inst"
    with pytest.raises(RuntimeError, match=expected):
        EngineArgs(config()).create_engine_config()


def test_a_newer_vllm_with_the_same_interface_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vllm.__version__", "0.34.0")
    EngineArgs(config()).create_engine_config()
    assert "was tried with vLLM 0.32 and 0.33, not with 0.34.0" in caplog.text


def worker_config(scheduler: object) -> Any:
    return SimpleNamespace(scheduler_config=SimpleNamespace(scheduler_cls=scheduler))


def test_without_the_plugin_workers_refuse_to_start() -> None:
    with pytest.raises(RuntimeError, match="did not load the plugin; leave VLLM_PLUGINS out"):
        Proposer(worker_config(None))


def test_the_proposer_drafts_nothing_and_mends_what_drafts_uncover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = rejection_sampler.expand_batch_to_tokens
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", function)
    monkeypatch.setattr(RejectionSampler, "forward", RejectionSampler.forward)
    proposer = Proposer(worker_config(SCHEDULER))
    proposer.load_model(object())
    assert proposer.propose([[1, 2], [3]], None, None, slot_mappings=None) == [[], []]

    values, ends = torch.tensor([0.7, 0.0, 0.5]), torch.tensor([2, 3, 6])
    expanded = rejection_sampler.expand_batch_to_tokens(values, ends, 6, 0, 1)
    assert torch.equal(expanded, torch.tensor([0.7, 0.7, 1.0, 0.5, 0.5, 0.5]))

    sampler, verify = Mock(), Mock()
    rejection = RejectionSampler(sampler, verify)
    logits = torch.zeros(2, 4)
    assert rejection.forward(SpecDecodeMetadata([0, 0]), None, logits, "s") is sampler.return_value
    sampler.assert_called_once_with(logits=logits, sampling_metadata="s")
    metadata = SpecDecodeMetadata([0, 2])
    assert rejection.forward(metadata, None, logits, "s") is verify.return_value
    verify.assert_called_once_with(metadata, None, logits, "s")


def test_leaves_what_is_right_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    right = repairs.expand_batch_to_tokens
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", right)
    monkeypatch.setattr(RejectionSampler, "forward", RejectionSampler.forward)
    repairs.apply()
    assert rejection_sampler.expand_batch_to_tokens is right
