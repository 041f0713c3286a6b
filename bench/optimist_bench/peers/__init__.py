"""Other engines that answer the same prompts with the same weights, for `optimist bench drafts`.

Each runs in a process of its own, `python -m optimist_bench.peers NAME`, that may have another
interpreter than ours. So nothing in here imports anything but the engine's own packages, the
standard library and its neighbours.
"""
