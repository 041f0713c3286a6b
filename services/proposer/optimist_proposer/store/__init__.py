"""Where outputs and sources are shared between replicas: Redis, written after the answers."""
