"""Other engines that answer the same prompts with the same weights, each in its own process.

For `optimist bench drafts`: `python -m optimist_bench.peers NAME`, which may have another
interpreter than ours. For `optimist bench engines`: a server, `peers.generate_server`. So nothing
in here imports anything but the engine's own packages, the standard library and its neighbours.
"""
