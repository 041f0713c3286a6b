"""Bodies of every shape that fill a limit of bytes; few of them are requests that can be served."""

import json
from collections.abc import Callable

from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES

Shape = tuple[str, Callable[[int], bytes]]
"""A path, and what makes a body of about so many bytes for it."""

_MODEL = b'"model":"tiny"'
_SAYS = b'{"role":"user","content":"Hello"}'
_USER = b'"messages":[' + _SAYS + b"]"
_PART = b'{"type":"text","text":""}'
_CALL = b'{"id":"a","function":{"name":"f","arguments":"%s"}}'


def _fill(piece: bytes, size: int) -> bytes:
    """Repeats a piece with commas between."""
    return b",".join([piece] * (size // (len(piece) + 1)))


def _listed(piece: bytes, size: int) -> bytes:
    return b"[" + _fill(piece, size) + b"]"


def _object(*fields: bytes) -> bytes:
    return b"{" + b",".join((_MODEL, *fields)) + b"}"


def _chat(name: bytes, value: Callable[[int], bytes]) -> Shape:
    return CHAT, lambda size: _object(_USER, b'"' + name + b'":' + value(size))


def _said(content: Callable[[int], bytes], role: bytes = b"user") -> Shape:
    begin = b'"messages":[{"role":"' + role + b'","content":'
    return CHAT, lambda size: _object(begin + content(size) + b"}]")


def _prompt(value: Callable[[int], bytes], *fields: bytes) -> Shape:
    return COMPLETIONS, lambda size: _object(b'"prompt":' + value(size), *fields)


def _text(piece: str) -> Callable[[int], bytes]:
    """A string as clients write it, with escapes of what is not ASCII."""
    written = json.dumps(piece)[1:-1].encode()
    return lambda size: b'"' + written * (size // len(written)) + b'"'


def _bytes(piece: bytes) -> Callable[[int], bytes]:
    return lambda size: b'"' + piece * (size // len(piece)) + b'"'


def _lists(piece: bytes) -> Callable[[int], bytes]:
    return lambda size: _listed(piece, size)


def _keys(size: int) -> bytes:
    return b"{" + b",".join(b'"%x":0' % number for number in range(size // 10)) + b"}"


def _deep(begin: bytes) -> Callable[[int], bytes]:
    return lambda size: begin * (size // len(begin))


def _calls(arguments: bytes) -> Callable[[int], bytes]:
    """Messages with as many calls as they may have."""
    message = b'{"role":"assistant","tool_calls":' + _listed(_CALL % arguments, 5000) + b"}"
    return lambda size: b"[" + _SAYS + b"," + _fill(message, size) + b"]"


def _schema(size: int) -> bytes:
    rows = (b'"%x":{"type":"string"}' % number for number in range(size // 26))
    schema = b'{"type":"object","properties":{' + b",".join(rows) + b"}}"
    return b'{"type":"json_schema","json_schema":{"name":"a","schema":' + schema + b"}}"


CODE = "def area(width, height):\n    return [width * height, {}]\n"
SHAPES: dict[str, Shape] = {
    "lists": (CHAT, lambda size: _listed(b"[]", size)),
    "objects": (CHAT, lambda size: _listed(b"{}", size)),
    "deep lists": (CHAT, _deep(b"[")),
    "keys": (CHAT, _keys),
    "strings": _chat(b"stop", _lists(b'""')),
    "a number": _chat(b"seed", _deep(b"1")),
    "unknown field": _chat(b"a", _lists(b"[]")),
    "text": _said(_text(CODE)),
    "escapes": _said(_text("\n")),
    "backslashes": _said(_text("\\")),
    "halves of surrogates": _said(_bytes(b"\\ud800")),
    "parts": _said(_lists(_PART)),
    "calls": (CHAT, lambda size: _object(b'"messages":' + _calls(b"{}")(size))),
    "arguments": (
        CHAT,
        lambda size: _object(
            b'"messages":['
            + _SAYS
            + b',{"role":"assistant","tool_calls":['
            + _CALL % (b'{\\"a\\":' + _listed(b"[]", size) + b"}")
            + b"]}]"
        ),
    ),
    "tools": _chat(
        b"tools", _lists(b'{"type":"function","function":{"name":"a","parameters":{}}}')
    ),
    "a tool": _chat(
        b"tools",
        lambda size: (
            b'[{"type":"function","function":{"name":"a","parameters":' + _keys(size) + b"}}]"
        ),
    ),
    "schema": _chat(b"response_format", _schema),
    "regex": _chat(b"structured_outputs", lambda size: b'{"regex":' + _text("a?")(size) + b"}"),
    "biases": _chat(b"logit_bias", _keys),
    "stop": _chat(b"stop", _lists(b'"a"')),
    "stop tokens": _chat(b"stop_token_ids", _lists(b"5")),
    "metadata": _chat(b"metadata", _keys),
    "predicted text": _chat(
        b"prediction",
        lambda size: b'{"type":"content","content":' + _text(CODE)(min(size, 2_000_000)) + b"}",
    ),
    "predicted tokens": _chat(b"predicted_token_ids", _lists(b"5")),
    "predictions of tokens": _chat(b"predicted_token_ids", _lists(b"[5]")),
    "prompt": _prompt(_text(CODE)),
    "prompt with its origin": _prompt(
        lambda size: _text(CODE)(size // 20), b'"include_provenance":true'
    ),
    "prompt of lines": _prompt(
        lambda size: _text("a\r\n")(size // 40),
        b'"prediction":{"type":"content","content":"a\\n"}',
    ),
    "tokens": _prompt(_lists(b"5")),
    "prompts of tokens": _prompt(
        lambda size: b"[" + b",".join([_listed(b"12", size // 128)] * 128) + b"]"
    ),
    "echo": _prompt(
        lambda size: b"[" + b",".join([_listed(b"12", size // 128)] * 128) + b"]", b'"echo":true'
    ),
    "a response": (RESPONSES, lambda size: _object(b'"input":' + _text(CODE)(size))),
    "items": (
        RESPONSES,
        lambda size: _object(b'"input":' + _listed(b'{"role":"user","content":""}', size)),
    ),
    "annotations": (
        RESPONSES,
        lambda size: _object(
            b'"input":['
            + _SAYS
            + b',{"role":"assistant","content":[{"type":"output_text","text":"",'
            b'"annotations":' + _listed(b"{}", size) + b"}]}]"
        ),
    ),
    "tokenize": ("/tokenize", lambda size: b'{"prompt":' + _text(CODE)(size) + b"}"),
    "tokenize words": (
        "/tokenize",
        lambda size: b'{"return_token_strs":true,"prompt":' + _text("a b")(size) + b"}",
    ),
    "detokenize": ("/detokenize", lambda size: b'{"tokens":' + _listed(b"5", size) + b"}"),
}
