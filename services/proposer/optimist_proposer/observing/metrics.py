"""What the proposer counts, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

OBSERVATIONS = Counter("optimist_proposer_observations", "Observations received")
WINDOWS = Counter("optimist_proposer_windows_sent", "Windows sent")
GAPS = Counter(
    "optimist_proposer_observation_gaps",
    "Requests whose observations could not be applied; many if Redis is slow, away or full",
)
REFUSALS = Counter("optimist_proposer_requests_refused", "Requests that exceed a limit")
FORGOTTEN = Counter("optimist_proposer_requests_forgotten", "Requests forgotten for lack of memory")
REPLAYED_TOKENS = Counter(
    "optimist_proposer_replayed_tokens", "Output tokens learned from the store"
)
BATCH_SECONDS = Histogram(
    "optimist_proposer_batch_seconds",
    "Time from a batch to its answer, what other batches took meanwhile included",
    buckets=(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5),
)
OBSERVATION_SECONDS = Histogram(
    "optimist_proposer_observation_cpu_seconds",
    "CPU time to observe new tokens of a request and to propose",
    buckets=(1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1),
)
LIVE_REQUESTS = Gauge("optimist_proposer_requests_in_memory", "Requests in memory")
REFERENCES = Gauge("optimist_proposer_sources_in_memory", "Sources in memory, shared by requests")
MEMORY_BYTES = Gauge(
    "optimist_proposer_request_memory_bytes", "Memory of requests and sources, roughly"
)
WRITES_DROPPED = Counter(
    "optimist_proposer_redis_writes_dropped", "Requests whose writes to the store were given up"
)
STORE_ERRORS = Counter("optimist_proposer_redis_errors", "Calls that the store failed")
WRONG_VALUES = Counter(
    "optimist_proposer_redis_wrong_values",
    "Values of the store that were not used, by what is wrong",
    ["kind"],
)
REDIS_ROUND_TRIPS = Counter("optimist_proposer_redis_round_trips", "Calls of Redis")
BREAKER_OPEN = Gauge(
    "optimist_proposer_redis_breaker_open", "1 while Redis is left alone because it failed"
)
