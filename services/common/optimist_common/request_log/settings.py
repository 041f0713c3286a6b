"""Settings of services that log single requests."""

import os
from pathlib import Path

from pydantic import Field

from optimist_aligner import Vocabulary
from optimist_common.request_log.logs import RequestLogs, default_log_directory
from optimist_common.settings import ServiceSettings


class RequestLogSettings(ServiceSettings):
    """Whether and where requests are logged."""

    request_log: bool = Field(
        False, description="whether each request gets a log, a file of JSON lines"
    )
    request_log_dir: str = Field(
        "", description="directory of these files; empty: log in OPTIMIST_HOME, or in ~/.optimist"
    )
    max_request_log_bytes: int = Field(
        67_108_864, ge=65_536, description="size at which such a file ends"
    )
    max_request_log_mib: int = Field(
        4096, ge=1, description="size of that directory, in MiB, at which no request is logged more"
    )

    def request_logs(self, vocabulary: Vocabulary) -> RequestLogs | None:
        """Returns the logs of single requests, or None if they are off."""
        if not self.request_log:
            return None
        return RequestLogs(
            Path(self.request_log_dir).expanduser()
            if self.request_log_dir
            else default_log_directory(os.environ),
            vocabulary,
            max_bytes_per_request=self.max_request_log_bytes,
            max_bytes=self.max_request_log_mib * 1024 * 1024,
        )
