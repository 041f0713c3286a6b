"""Follows an output through all that it may repeat, and says how it goes on.

`Aligner(vocabulary).prepare(sources)` reads what may be repeated once, `follow` begins an output,
`observe` takes its tokens, and `propose` returns a `Draft` of what comes next.
"""

from importlib.util import find_spec

from optimist_aligner.algorithm import Algorithm, Follower, Reference
from optimist_aligner.drafting.draft import FLOAT32, NO_PARENT, Draft
from optimist_aligner.follower import Aligner
from optimist_aligner.text.sources import INT32, LAST_OF_PROMPT, NO_POSITION, SEPARATOR, Sources
from optimist_aligner.text.vocabulary import Encode, Vocabulary

__all__ = [
    "FLOAT32",
    "INT32",
    "IS_COMPILED",
    "LAST_OF_PROMPT",
    "NO_PARENT",
    "NO_POSITION",
    "SEPARATOR",
    "Algorithm",
    "Aligner",
    "Draft",
    "Encode",
    "Follower",
    "Reference",
    "Sources",
    "Vocabulary",
]

IS_COMPILED = find_spec("optimist_aligner.native") is not None
"""Whether `Aligner` is machine code, or else Python that gives the same drafts."""

if IS_COMPILED:
    from optimist_aligner.compiled import CompiledAligner as Aligner
