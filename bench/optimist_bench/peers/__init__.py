"""Another engine that answers the same prompts with the same weights, in its own process.

For `optimist bench engines`: a server, `peers.generate_server`. Nothing in here imports anything
but the engine's own packages, the standard library and its neighbours.
"""
