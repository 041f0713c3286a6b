from typing import Any


class StructuredOutputRequest:
    """Its grammar is compiled when the test says so."""

    def __init__(self, grammar: Any) -> None:
        self.grammar = grammar
        self.is_grammar_ready = False
