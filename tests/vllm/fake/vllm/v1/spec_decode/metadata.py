from dataclasses import dataclass


@dataclass
class SpecDecodeMetadata:
    num_draft_tokens: list[int]

    def __post_init__(self) -> None:
        self.max_spec_len = max(self.num_draft_tokens)
