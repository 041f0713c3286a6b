"""Probes, metrics, administration."""
