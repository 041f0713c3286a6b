"""The loop of each worker, and the workers as they come and go."""
