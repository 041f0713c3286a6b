"""The requests of one worker: who waits, who runs, and what is known of them."""
