"""A tokenizer for checkpoints of random weights."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def add_tokenizer(path: Path) -> Path:
    """Gives a checkpoint a tokenizer of bytes, so that outputs can follow grammars."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<s>", "</s>", *letters]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path
