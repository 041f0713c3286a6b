"""The drafters of a worker, in every way that one is used: more of its command line, by name."""

TREE = ("--drafter-tokens", "12", "--drafter-depth", "4", "--drafter-width", "3")

SOURCES = {
    "none": ("--drafter", "none"),
    "ngram": ("--drafter", "ngram", "--drafter-tokens", "16"),
    "draft_model": ("--drafter", "draft_model"),
    "draft_model discarded": ("--drafter", "draft_model", "--drafter-kv", "discard"),
    "draft_model tree": ("--drafter", "draft_model", "--drafter-tree", "dynamic", *TREE),
    "quantised": ("--drafter", "quantised", "--drafter-bits", "8"),
    "quantised tree": (
        *("--drafter", "quantised", "--drafter-bits", "4"),
        *("--drafter-tree", "fixed", *TREE),
    ),
    "medusa": ("--drafter", "medusa"),
    "medusa tree": ("--drafter", "medusa", "--drafter-tree", "fixed", *TREE),
    "eagle": ("--drafter", "eagle"),
    "eagle tree": ("--drafter", "eagle", "--drafter-tree", "dynamic", *TREE),
    "eagle by rejection": ("--drafter", "eagle", "--acceptance", "rejection"),
}
