"""The tokenizer of a model directory, loaded by transformers once its files have been tried."""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optimist_common.errors import SetupError, one_line
from optimist_common.model_files.json_file import (
    FileError,
    kind,
    read_file,
    read_object,
    read_text,
    shown,
)
from optimist_common.model_files.trial import MAX_BYTES, check_id, try_tokenizer

MAX_TEMPLATE_BYTES = 2**20
_SPECIAL = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FORMS = ("tokenizer.json", "vocab*", "*.model", "*.tiktoken", "*.spm", "tekken.json")
_NAMES = ("tokenizer_config.json", "special_tokens_map.json")
_TEMPLATE = "chat_template.json"
_FAST = "tokenizer.json"
_SLOW = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_VOCABULARIES = ("vocab.json", "merges.txt", "vocab.txt", *_SLOW)


def check_tokenizer_files(directory: Path) -> None:
    """Raises FileError if a file that belongs to the tokenizer is wrong.

    tokenizer.json itself is tried in a process of its own.
    """
    _check_templates(directory)
    for name in (*_VOCABULARIES, *_NAMES, "added_tokens.json", _TEMPLATE, _FAST):
        if os.path.lexists(directory / name):
            _check_file(directory / name)
    if not (directory / _FAST).exists():
        _check_slow(directory)


def _check_file(path: Path) -> None:
    if not path.exists():
        raise FileError(f"{path.name} cannot be read: it is a link to nothing")
    if path.name in _VOCABULARIES:
        read_file(path, MAX_BYTES)
        return
    if path.name == _FAST:
        try_tokenizer(path)
        return
    content = read_object(path, MAX_BYTES // 4)
    if path.name == _TEMPLATE:
        _check_template(content.get("chat_template"), f"{path.name}: chat_template")
    elif path.name == "added_tokens.json":
        for token, number in content.items():
            check_id(f"{path.name}: {shown(token)}", number)
    else:
        _check_names(content, path.name)


def _check_slow(directory: Path) -> None:
    """Raises FileError for a tokenizer that cannot be converted to a tokenizer.json."""
    for name in _SLOW:
        if not (directory / name).exists():
            continue
        data = read_file(directory / name, MAX_BYTES)
        # The first field of the message is a piece; tiktoken's files are lines of Base64.
        package = "sentencepiece" if data.startswith(b"\n") else "tiktoken"
        if not data or (package == "tiktoken" and not data.isascii()):
            raise FileError(f"{name} is a tokenizer neither of SentencePiece nor of tiktoken")
        if importlib.util.find_spec(package) is None:
            raise FileError(
                f"there is no tokenizer.json, and to convert {name} takes a package that is not "
                f"installed: pip install {package}"
            )


def _check_templates(directory: Path) -> None:
    folder = directory / "additional_chat_templates"
    others = sorted(folder.glob("*.jinja")) if folder.is_dir() else []
    for path in (directory / "chat_template.jinja", *others):
        if os.path.lexists(path):
            read_text(path, MAX_TEMPLATE_BYTES)


def _check_names(content: Mapping[str, Any], name: str) -> None:
    """Checks what names tokens, and the chat template."""
    for key in _SPECIAL:
        _check_token(content.get(key), f"{name}: {key}")
    _check_lists(content, name)
    _check_added(content.get("added_tokens_decoder"), f"{name}: added_tokens_decoder")
    for key in ("tokenizer_class", "model_type"):
        if not isinstance(content.get(key), str | None):
            raise FileError(f"{name}: {key} is {shown(content[key])}; it must be a text")
    _check_template(content.get("chat_template"), f"{name}: chat_template")


def _check_lists(content: Mapping[str, Any], name: str) -> None:
    for key in _LISTS:
        tokens = content.get(key)
        if isinstance(tokens, dict):
            tokens = list(tokens.values())
        if tokens is not None and not isinstance(tokens, list):
            raise FileError(f"{name}: {key} is {shown(tokens)}; it must be a list")
        for index, token in enumerate(tokens or []):
            _check_token(token, f"{name}: {key}[{index}]")


def _check_added(added: Any, what: str) -> None:
    if added is not None and not isinstance(added, dict):
        raise FileError(f"{what} is {kind(added)}; it must be an object")
    for number, token in (added or {}).items():
        is_number = number.isascii() and number.isdigit() and len(number) < 12
        check_id(what, int(number) if is_number else number)
        if not isinstance(token, dict):
            raise FileError(f"{what}.{number} must be an object")
        _check_token(token, f"{what}.{number}")


def _check_token(token: Any, what: str) -> None:
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str) and token is not None:
        raise FileError(f"{what} is {shown(token)}; it must be a text, or an object with content")


def _check_template(template: Any, what: str) -> None:
    """Checks a chat template, or the named ones of a model that has several."""
    named = {"default": template}
    if isinstance(template, list):
        named = {}
        for index, each in enumerate(template):
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise FileError(f"{what}[{index}] must be an object with name and template")
            named[each["name"]] = each.get("template")
    for name, text in named.items():
        if text is None and template is None:
            continue
        if not isinstance(text, str):
            raise FileError(f"{what} ({name}) is {shown(text)}; it must be a text")
        if len(text) > MAX_TEMPLATE_BYTES:
            raise FileError(f"{what} ({name}) has more than {MAX_TEMPLATE_BYTES} characters")


def find_file(name: str, file: str) -> Path | None:
    """Returns where a file of a model is, fetched from the hub if need be; None if it has none.

    Nor has it one that was not fetched before while the hub does not answer.
    """
    from transformers.utils.hub import cached_file

    path = cached_file(
        _place(name),
        file,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else Path(path)


def _place(name: str) -> str:
    path = Path(name).expanduser()
    return str(path) if path.is_dir() else name


def has_tokenizer(name: str) -> bool:
    """Returns whether a directory has a tokenizer in any form; names of a hub are taken to."""
    path = Path(name).expanduser()
    return not path.is_dir() or any(file for form in _FORMS for file in path.glob(form))


def load_tokenizer(name: str, flag: str) -> Any:
    """Returns the tokenizer of transformers; runs no code of the model.

    Raises SetupError if it cannot be loaded; the message begins with the flag that named it.
    """
    from transformers import AutoTokenizer

    if not has_tokenizer(name):
        raise SetupError(f"{flag}: {name}: there is no tokenizer.json")
    with explained(f"{flag}: cannot load the tokenizer of {name}"):
        tokenizer = AutoTokenizer.from_pretrained(_place(name), trust_remote_code=False)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise SetupError(
            f"{flag}: the tokenizer of {name} has no fast form; convert it to a tokenizer.json"
        )
    return tokenizer


def load_templates(name: str, flag: str, tokenizer: Any) -> dict[str, str]:
    """Returns the chat templates of a model by their names, without empty ones.

    Beside those of its tokenizer there may be the template of a processor. Raises SetupError if
    they cannot be read; the message begins with the flag that named the model.
    """
    found = tokenizer.chat_template
    if not found:
        with explained(f"{flag}: cannot read {_TEMPLATE} of {name}"):
            path = find_file(name, _TEMPLATE)
            found = None if path is None else read_object(path).get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}
    named = found if isinstance(found, dict) else {"default": found or ""}
    return {key: template for key, template in named.items() if template.strip()}


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns whatever a library raises for the files of a model into one line.

    Raises:
        SetupError: `what`, and the error's own text.
    """
    try:
        yield
    except (SetupError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # Libraries raise anything here, and panics of Rust derive from BaseException alone.
        reason = one_line(error)
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        if isinstance(error, KeyError | AttributeError | IndexError | ZeroDivisionError):
            reason = f"{type(error).__name__}: {reason}"
        raise SetupError(f"{what}: {reason}") from None
