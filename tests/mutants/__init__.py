"""Mutants of the scheduler's rules, each of which a test must notice."""
