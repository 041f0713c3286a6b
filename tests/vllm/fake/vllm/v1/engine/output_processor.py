from vllm.v1.engine import EngineCoreOutput


class OutputProcessor:
    """Ends each output in front of a stop character."""

    def __init__(self) -> None:
        self.stop: int | None = None
        self.seen: list[EngineCoreOutput] = []

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: object = None,
        weight_version: str | None = None,
    ) -> list[str]:
        """Returns which requests are to be aborted."""
        stopped = []
        for output in engine_core_outputs:
            assert output.kv_transfer_params is None
            if self.stop in output.new_token_ids:
                del output.new_token_ids[output.new_token_ids.index(self.stop) :]
                stopped.append(output.request_id)
            self.seen.append(output)
        return stopped
