"""Tries a tokenizer.json in a process of its own, which may end of it.

Its library panics, allocates by the numbers in the file, and runs the file's regular expressions.
Started as a module with the path, this prints what is wrong in one line, or nothing. Memory and
processor time are limited.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from optimist_common.errors import one_line
from optimist_common.model_files.json_file import FileError, parse_object, read_file, shown

MAX_BYTES = 96 * 2**20
"""The largest tokenizers have 35 MB."""
MAX_TOKEN_ID = 2**22
MEMORY_BYTES = 2**30
CPU_SECONDS = 6
_WAIT_SECONDS = 120.0
_SHORT = "Hello, world! 1 + 1 = 2\n"
# Runs of one character, and of two in turn, are what expressions that backtrack fail on.
_RUNS = [chr(code) * 48 for code in range(0x20, 0x7F)] + [
    "\n" * 48,
    "aA" * 24,
    "a1" * 24,
    "a " * 24,
]
_LONG = "".join(f"{run}!\n{run} \u00fc\u65e5" for run in _RUNS)
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def try_tokenizer(path: Path) -> None:
    """Raises FileError unless the tokenizers library reads a file and makes tokens of texts."""
    read_file(path, MAX_BYTES)
    try:
        result = subprocess.run(  # noqa: S603 (ourselves)
            [sys.executable, "-m", "optimist_common.model_files.trial", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Threads would each reserve memory.
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
            timeout=_WAIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FileError(f"{path.name} takes longer than {_WAIT_SECONDS:g} s to try") from None
    steps = result.stdout.decode(errors="replace").splitlines()
    if result.returncode:
        doing = steps[-1] if steps else "reading it"
        raise FileError(
            f"{path.name}: {doing} takes more than {CPU_SECONDS} s or "
            f"{MEMORY_BYTES // 2**20} MiB, or ends the process (exit code {result.returncode})"
        )
    if steps[-1] != _GOOD:
        raise FileError(steps[-1])


_GOOD = "good"


def main(path: Path) -> None:
    """Prints what is being done, line by line, and at last what is wrong, or that nothing is."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _try(path)
    except FileError as error:
        said = str(error)
        _say(said if said.startswith(path.name) else f"{path.name}: {said}")
    else:
        _say(_GOOD)


def _say(step: str) -> None:
    print(step, flush=True)  # noqa: T201


def _try(path: Path) -> None:
    _say("reading it as JSON")
    data = read_file(path, MAX_BYTES)
    content = parse_object(data, path.name)
    _check_ids(content)
    _say("reading it by the tokenizers library")
    tokenizer = _load(content, data)
    for length, text in (("short", _SHORT), ("long", _LONG)):
        _say(f"making tokens of a {length} text")
        try:
            token_ids = tokenizer.encode(text).ids
            tokenizer.decode(token_ids, skip_special_tokens=False)
        except BaseException as error:
            # A panic of the library derives from BaseException alone.
            raise FileError(f"it fails on a {length} text: {one_line(error)}") from None
    if not tokenizer.get_vocab_size():
        raise FileError("model.vocab is empty")


def _check_ids(content: dict[str, Any]) -> None:
    """Raises FileError for ids that tables would be made for."""
    model = content.get("model")
    if not isinstance(model, dict):
        raise FileError(f"model is {shown(model)}; it must be an object")
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        for token, number in vocabulary.items():
            check_id(f"model.vocab: {shown(token)}", number)
    added = content.get("added_tokens")
    if added is None:
        return
    if not isinstance(added, list):
        raise FileError(f"added_tokens is {shown(added)}; it must be a list")
    for index, token in enumerate(added):
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise FileError(f"added_tokens[{index}] must be an object with id and content")
        check_id(f"added_tokens[{index}].id", token.get("id"))


def check_id(what: str, value: Any) -> None:
    """Raises FileError unless a value is the id of a token."""
    if type(value) is not int or not 0 <= value <= MAX_TOKEN_ID:
        raise FileError(f"{what} is {shown(value)}; it must be a whole number to {MAX_TOKEN_ID}")


def _load(content: dict[str, Any], data: bytes) -> Any:
    from tokenizers import Tokenizer, __version__

    try:
        return Tokenizer.from_buffer(data)
    except BaseException as error:
        reason = one_line(error).removeprefix("Cannot instantiate Tokenizer from buffer: ")
    # Which part it is, the library does not say.
    for part in _PARTS:
        if content.get(part) is None:
            continue
        try:
            Tokenizer.from_str(json.dumps(content | {part: None}))
        except BaseException:  # noqa: S112 (it is another part)
            continue
        kind = content[part].get("type") if isinstance(content[part], dict) else None
        raise FileError(_unread(f"{part} ({shown(kind)})", __version__, reason))
    raise FileError(_unread(f"model ({shown(content['model'].get('type'))})", __version__, reason))


def _unread(part: str, version: str, reason: str) -> str:
    return f"tokenizers {version} cannot read its {part}: {reason}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.exit(0)
