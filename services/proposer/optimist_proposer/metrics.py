"""What the proposer counts, for Prometheus."""

from prometheus_client import Counter, Histogram

OBSERVATIONS = Counter("optimist_proposer_observations", "Observations received")
WINDOWS = Counter("optimist_proposer_windows", "Windows sent")
GAPS = Counter("optimist_proposer_gaps", "Requests whose observations could not be applied")
ALIGNMENTS = Counter("optimist_proposer_alignments", "Searches for the place in a prediction")
LOSSES = Counter("optimist_proposer_losses", "Times the place in a prediction was lost")
CONFLICTS = Counter("optimist_proposer_conflicts", "Cursors that another replica had moved")
STORE_ERRORS = Counter("optimist_proposer_store_errors", "Batches that the store failed")
ALIGNMENT_SECONDS = Histogram(
    "optimist_proposer_alignment_seconds",
    "Time of an observation in which the place was searched for",
    buckets=(1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2, 1e-1),
)
