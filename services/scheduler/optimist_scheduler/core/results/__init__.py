"""What becomes of a worker's result."""
