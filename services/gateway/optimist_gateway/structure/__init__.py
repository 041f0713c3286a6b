"""Answers of a given form: grammars from schemas and tools, and reading of tool calls."""
