from typing import Any


class StructuredOutputManager:
    """Its grammar allows every token but those in `forbidden`."""

    def __init__(self) -> None:
        self.forbidden: set[int] = set()

    def validate_tokens(self, request: Any, spec_tokens: list[int]) -> list[int]:
        for index, token_id in enumerate(spec_tokens):
            if token_id in self.forbidden:
                return spec_tokens[:index]
        return spec_tokens
