"""A request's state in the worker: tokens, KV length, block table, draft window."""

from dataclasses import dataclass, field

from optimist_common.sampling import SamplingParams


@dataclass(slots=True)
class Window:
    """Tokens the output is expected to go on with, the first at output position `base`."""

    base: int
    token_ids: list[int]


@dataclass(slots=True)
class Slot:
    """One admitted request. This state is the truth to which every plan is relative."""

    request_id: str
    token_ids: list[int]
    """Prompt and output."""
    num_prompt_tokens: int
    sampling: SamplingParams
    max_length: int
    """Length at which the request ends, in tokens."""
    min_length: int = 0
    """Length below which no stop token ends the request, in tokens."""
    stop_token_ids: frozenset[int] = frozenset()
    num_computed_tokens: int = 0
    """Tokens whose keys and values are valid; a rollback lowers nothing but this."""
    block_table: list[int] = field(default_factory=list)
    window: Window | None = None
    error: str | None = None
    """Why this request can never run, or None."""
    ended: bool = False
    """Whether the text is complete: a stop token or `max_length` was reached."""

    @property
    def num_tokens(self) -> int:
        """Length of prompt and output."""
        return len(self.token_ids)

    def set_window(self, window: Window) -> None:
        """Replaces the window; one that the output already contradicts is dropped."""
        first = self.num_prompt_tokens + window.base
        self.window = window if _agrees(self.token_ids[first:], window.token_ids) else None

    def drafts(self, limit: int) -> list[int]:
        """Returns up to `limit` tokens that the window expects behind the last token."""
        if self.window is None or limit <= 0:
            return []
        offset = self.num_tokens - self.num_prompt_tokens - self.window.base
        return self.window.token_ids[offset : offset + limit] if offset >= 0 else []

    def extend(self, token_ids: list[int]) -> None:
        """Appends emitted tokens; notes whether the text ends with them.

        A window that they depart from, or use up, is dropped. What was emitted behind a stop token
        stays: whoever reads the text cuts it.
        """
        first_length = self.num_tokens + 1
        position = self.num_tokens - self.num_prompt_tokens
        self.token_ids += token_ids
        self.ended = self.num_tokens >= self.max_length or any(
            token_id in self.stop_token_ids and length >= self.min_length
            for length, token_id in enumerate(token_ids, first_length)
        )
        if self.window is None:
            return
        first = max(position, self.window.base)
        emitted = self.token_ids[self.num_prompt_tokens + first :]
        if not _agrees(emitted, self.window.token_ids[first - self.window.base :]):
            self.window = None


def _agrees(emitted: list[int], expected: list[int]) -> bool:
    """Tells whether the emitted tokens are a proper beginning of the expected ones."""
    return len(emitted) < len(expected) and emitted == expected[: len(emitted)]
