"""The worker's decisions without sockets and clocks: slots, batches, attention, acceptance."""
