"""Logs of single requests, for `optimist explain`; for services that have the aligner."""
