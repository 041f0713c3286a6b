"""Text and tokens: tokenizers, chat templates, prompts and predictions."""
