"""What can be seen of requests from outside: metrics, traces and log lines."""
