"""What the plugin decides, without vLLM."""
