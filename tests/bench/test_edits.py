"""What `optimist bench edits` reads of the services that it has started."""

from prometheus_client import start_http_server

from optimist_bench.edits import find_times
from optimist_proposer.observing import metrics
from optimist_worker.service import observing


def test_times_are_those_of_the_services_metrics() -> None:
    assert find_times([]) == {}
    metrics.BATCH_SECONDS.observe(0.001)
    observing.DRAFT_SECONDS.labels("prediction").observe(0.002)
    observing.VERIFY_SECONDS.labels("prediction").observe(0.003)
    server, thread = start_http_server(0, "127.0.0.1")
    try:
        times = find_times([server.server_port])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert times.keys() == {"proposer_ms_per_batch", "draft_ms_per_pass", "verify_ms_per_pass"}
    assert min(times.values()) > 0
