"""What the worker can hold and what the scheduler allows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of every schedule."""

    vocab_size: int
    """Token ids are 0 to vocab_size - 1."""
    max_model_len: int
    """Longest sequence of the model, prompt and output, in tokens."""
    block_size: int
    """Tokens per KV block."""
    num_blocks: int
    """KV blocks; ids are 0 to num_blocks - 1."""
    max_num_seqs: int
    """Requests that run at once; slots are 0 to max_num_seqs - 1."""
    max_num_batched_tokens: int
    """Tokens of one forward pass, drafts included."""
    max_num_waiting: int
    """Requests that wait; one more is turned away."""
    num_speculative_tokens: int
    """Most drafts per row."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Longest sequence that fits the KV memory, in tokens."""
        return self.num_blocks * self.block_size

    @property
    def max_length(self) -> int:
        """Longest sequence that can run, in tokens."""
        return min(self.max_model_len, self.kv_capacity_tokens)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks `num_tokens` tokens fill or begin."""
        return -(-num_tokens // self.block_size)
