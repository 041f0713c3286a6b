"""Logs, metrics and spans of every service."""
