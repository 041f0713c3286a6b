"""What the proposer shows of itself: metrics, spans, and a log for each request."""
