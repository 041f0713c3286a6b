"""`python -m tests.models [--json] [NAME ...]`: exit code 1 if a kind is served and wrong."""

import argparse
import json
import logging
import sys
import warnings
from collections import Counter
from dataclasses import asdict

from transformers.utils import logging as transformers_logging

from tests.models.kinds import NAMES
from tests.models.sweep import WRONG, try_kind


def main() -> int:
    """Tries all kinds, or those that are named, and prints what became of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    verdicts: Counter[str] = Counter()
    for name in options.names:
        outcome = try_kind(name)
        verdicts[outcome.verdict] += 1
        line = f"{name:42} {outcome.verdict:10} {outcome.reason}"
        print(json.dumps(asdict(outcome)) if options.json else line.rstrip(), flush=True)  # noqa: T201
    summary = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
    print(summary, file=sys.stderr)  # noqa: T201
    return int(verdicts[WRONG] > 0)


if __name__ == "__main__":
    sys.exit(main())
