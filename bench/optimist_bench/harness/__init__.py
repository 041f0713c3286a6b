"""What several benchmarks share: services, simulated workers, texts, tables."""
