"""For processes that read tokenizers and compute nothing."""

import os
import sys
from typing import cast


def hide_torch() -> None:
    """Has transformers do without PyTorch from now on, as in an image that has none.

    Where PyTorch is installed, transformers imports all of it to load a tokenizer, which takes
    2.4 s and 330 MiB in each process. Call it where a process begins; what was imported before
    stays.
    """
    # The import system's own way to say that there is no such module.
    cast("dict[str, object]", sys.modules).setdefault("torch", None)
    # It would advise to install it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
