"""A plugin of pytest (`-p tests.pure`): nothing that is compiled of the aligner can be imported.

What runs then is the specification in Python, of the aligner and of the scheduler's windows.
"""

import sys
from typing import cast

# The import system's own way to say that there is no such module.
cast("dict[str, object]", sys.modules)["optimist_aligner.native"] = None
