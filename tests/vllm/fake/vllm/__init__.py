"""As much of vLLM as the plugin touches, with a model whose output is known."""

__version__ = "0.33.0"
