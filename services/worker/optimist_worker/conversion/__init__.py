"""GGUF files converted into directories that the worker serves."""
