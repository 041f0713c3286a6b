"""Files of a model directory, read and checked before any library sees them; no PyTorch."""
