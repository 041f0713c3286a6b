from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output.request import StructuredOutputRequest


class Request:
    def __init__(
        self, request_id: str, prompt_token_ids: list[int] | None, sampling_params: SamplingParams
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.max_tokens = sampling_params.max_tokens
        self.output_token_ids: list[int] = []
        self.spec_token_ids: list[int] = []
        self.resumable = False
        self.structured_output_request: StructuredOutputRequest | None = None

    @property
    def use_structured_output(self) -> bool:
        return self.structured_output_request is not None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids or ()) + len(self.output_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)
