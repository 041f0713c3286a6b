"""Each drafter of a worker, as a chain or as a tree: more of its command line, by name."""

TREE = ("--drafter-tokens", "12", "--drafter-depth", "4", "--drafter-width", "3")

SOURCES = {
    "none": ("--drafter", "none"),
    "ngram": ("--drafter", "ngram", "--drafter-tokens", "16"),
    "draft_model discarded": ("--drafter", "draft_model", "--drafter-kv", "discard"),
    "draft_model tree": ("--drafter", "draft_model", "--drafter-tree", "dynamic", *TREE),
    "quantised tree": (
        *("--drafter", "quantised", "--drafter-bits", "4"),
        *("--drafter-tree", "fixed", *TREE),
    ),
    "medusa tree": ("--drafter", "medusa", "--drafter-tree", "fixed", *TREE),
    "eagle tree": ("--drafter", "eagle", "--drafter-tree", "dynamic", *TREE),
    "eagle by rejection": ("--drafter", "eagle", "--acceptance", "rejection"),
}
