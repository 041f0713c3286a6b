"""The scheduler's decisions, without sockets, clocks or tasks."""
