"""Where outputs and sources are shared between replicas: Redis, written behind the answers."""
