from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request


class Scheduler:
    """Runs every request in every pass; a new one computes its prompt in its first."""

    def __init__(self, vllm_config: Any, kv_cache_config: object, structured_output_manager: Any):
        self.vllm_config = vllm_config
        self.structured_output_manager = structured_output_manager
        self.num_spec_tokens: int = vllm_config.num_speculative_tokens
        self.max_model_len: int = vllm_config.max_model_len
        self.requests: dict[str, Request] = {}

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request

    def finish_requests(self, request_ids: Any, finished_status: object) -> list[Request]:
        return [self.requests.pop(each) for each in request_ids if each in self.requests]

    def shutdown(self) -> None: ...

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        drafts, counts = {}, {}
        for request_id, request in self.requests.items():
            if request.spec_token_ids:
                drafts[request_id] = request.spec_token_ids
            counts[request_id] = 1 + len(request.spec_token_ids)
            if not request.output_token_ids:
                counts[request_id] = request.num_tokens
            request.spec_token_ids = []
        return SchedulerOutput(counts, drafts, sum(counts.values()))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: dict[str, list[int]]
    ) -> dict[int, EngineCoreOutputs]:
        """Takes what the model emitted; 0 ends an output."""
        outputs = EngineCoreOutputs()
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None:
                continue
            new, finish_reason = [], None
            for token_id in model_runner_output[request_id]:
                new.append(token_id)
                request.output_token_ids.append(token_id)
                if token_id == 0 or request.num_output_tokens == request.max_tokens:
                    finish_reason = "stop" if token_id == 0 else "length"
                    break
            if finish_reason is not None:
                del self.requests[request_id]
            outputs.outputs.append(EngineCoreOutput(request_id, new, finish_reason))
        return {0: outputs}
