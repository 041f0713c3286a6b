"""Tests, mirroring the sources."""
