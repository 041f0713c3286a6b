"""Benchmarks through the running services, a file each."""
