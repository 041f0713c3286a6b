"""The requests of all workers, and the stream to each of them."""
