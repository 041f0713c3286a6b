"""Shapes of models, and the least time that a step of each takes on a device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers


@dataclass(frozen=True)
class Ceilings:
    """What the device was measured to do."""

    bandwidth: float = 1e12
    """Bytes per second, read and written."""
    flops: float = 1e14


@dataclass(frozen=True)
class Shape:
    """A decoder of Llama's kind."""

    name: str
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def num_streamed(self) -> int:
        """Weights that a step reads: all but the input embedding."""
        attention = 2 * self.hidden * self.head_dim * (self.num_heads + self.num_kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.num_layers * layer + self.vocab_size * self.hidden

    @property
    def num_kept(self) -> int:
        """Numbers that a token keeps as keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def floor_seconds(
        self, batch: int, width: int, ctx: float, ceilings: Ceilings, itemsize: int
    ) -> float:
        """Returns the least time of a step: its products and its attention, each at a ceiling.

        Args:
            batch: Rows.
            width: Tokens of each.
            ctx: Tokens that each has before.
            ceilings: Of the device.
            itemsize: Bytes of a number.
        """
        number = batch * width
        products = self.num_streamed * itemsize + 2 * number * self.vocab_size * itemsize
        attention = batch * (ctx + width) * self.num_kept * itemsize
        scores = 4 * self.num_layers * self.num_heads * self.head_dim * (ctx + width / 2) * number
        return max(
            products / ceilings.bandwidth, 2 * self.num_streamed * number / ceilings.flops
        ) + max(attention / ceilings.bandwidth, scores / ceilings.flops)

    def write(self, directory: Path, **options: Any) -> str:
        """Writes a config.json for the shape; returns its folder."""
        config = transformers.LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=16384,
            tie_word_embeddings=False,
            bos_token_id=0,
            **{"eos_token_id": None, **options},
        )
        path = directory / self.name
        config.save_pretrained(path)
        return str(path)


LARGE = Shape("8B", 32, 4096, 14336, 32, 8, 128, 128256)
SMALL = Shape("1B", 16, 2048, 8192, 32, 8, 64, 128256)
TINY_LARGE = Shape("8B", 3, 64, 128, 4, 2, 16, 320)
TINY_SMALL = Shape("1B", 2, 64, 128, 4, 2, 16, 320)
EXACT = Shape("exact", 4, 256, 512, 8, 4, 32, 1000)
TINY_EXACT = Shape("exact", 2, 32, 64, 4, 2, 8, 200)
