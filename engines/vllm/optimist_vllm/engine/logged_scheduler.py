"""The plugin's scheduler, which besides logs what it drafts for each request."""

import os
from collections.abc import Sequence
from typing import Any

from optimist_aligner import Draft
from optimist_common.request_log.settings import RequestLogSettings
from optimist_vllm.core.followed_request import FollowedRequest
from optimist_vllm.engine.log_writer import LogWriter
from optimist_vllm.scheduler import PredictionScheduler

LOGGED_SCHEDULER = "optimist_vllm.engine.logged_scheduler.LoggedScheduler"
VARIABLE = "OPTIMIST_VLLM_REQUEST_LOG"
"""What tells vLLM's process the settings, as JSON. In vLLM's own configuration they would make it
compile the model anew."""


def use_logged_scheduler(config: Any, settings: RequestLogSettings) -> None:
    """Makes a configuration of vLLM with the plugin's scheduler log, before vLLM starts."""
    config.scheduler_config.scheduler_cls = LOGGED_SCHEDULER
    os.environ[VARIABLE] = settings.model_dump_json(include=set(RequestLogSettings.model_fields))


class LoggedScheduler(PredictionScheduler):
    """Logs each request that is followed: a step for each pass that brought tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = RequestLogSettings.model_validate_json(os.environ[VARIABLE])
        logs = settings.request_logs(self._vocabulary)
        if logs is None:
            raise RuntimeError(f"{VARIABLE} turns logs off")
        self._log = LogWriter(logs)
        self._paths: dict[str, Draft] = {}
        """What was found after the last pass."""
        self._settled: list[tuple[Any, Any]] = []
        """Outputs of this pass and their entries."""

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """See `PredictionScheduler`; writes a step for each request with new tokens."""
        outputs = super().update_from_output(*args, **kwargs)
        for output, entry in self._settled:
            request_id, followed = output.request_id, entry.followed
            self._log.step(
                request_id,
                output.new_token_ids,
                # Without a path the next pass has no drafts.
                self._paths.get(request_id, Draft()),
                followed.draft_ns / 1e9 if followed else 0.0,
                followed.num_alignments if followed else 0,
            )
            if request_id not in self._entries:
                self._log.end(request_id)
        self._settled.clear()
        self._paths.clear()
        self._log.flush()
        return outputs

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Aborts requests, whose logs end at once."""
        aborted = super().finish_requests(*args, **kwargs)
        self._forget_gone()
        self._log.flush()
        return aborted

    def shutdown(self) -> None:
        """Ends, once the logs are written."""
        self._log.stop()
        super().shutdown()

    def _begin(self, request: Any, attached: Any) -> None:
        super()._begin(request, attached)
        entry = self._entries.get(request.request_id)
        if entry is not None:
            self._log.begin(request.request_id, entry.prepared, entry.delivered)

    def _settle(self, output: Any, drafts: Sequence[int]) -> None:
        entry = self._entries.get(output.request_id)
        super()._settle(output, drafts)
        if entry is not None:
            self._settled.append((output, entry))

    def _find_path(self, request: Any, followed: FollowedRequest, max_drafts: int) -> Draft | None:
        path = super()._find_path(request, followed, max_drafts)
        if path is not None:
            self._paths[request.request_id] = path
        return path

    def _forget_gone(self) -> None:
        followed = list(self._entries)
        super()._forget_gone()
        for request_id in followed:
            if request_id not in self._entries:
                self._log.end(request_id)
