"""`suffix` of /v1/completions: models that know how fill in the middle."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from optimist_gateway.text.infilling import find_infilling
from optimist_gateway.text.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.conftest import CHAT_TEMPLATE
from tests.gateway.fake_scheduler import EOS, MAX_MODEL_LEN, Script, Step, tokens
from tests.gateway.harness import CHAT, COMPLETIONS, Fields, Gateway, Start, starting
from tests.gateway.text.test_prediction import predictions

PREFIX, SUFFIX = "def main(argument):\n    return ", " + 1\n\n\nprint(index)\n"
QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"]
MISTRAL = ["[PREFIX]", "[MIDDLE]", "[SUFFIX]"]
FAMILIES = {
    "Qwen": (QWEN[:3], "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"),
    "DeepSeek": (
        ["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"],  # noqa: RUF001
        "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>",  # noqa: RUF001
    ),
    "Code Llama": (["▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"], "▁<PRE>a▁<SUF>b▁<MID>"),
    "Codestral": (MISTRAL, "[SUFFIX]b[PREFIX]a"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_form_is_that_of_the_vocabulary(family: str) -> None:
    own, expected = FAMILIES[family]
    vocabulary = {text: number for number, text in enumerate([*"ab", "<|endoftext|>", *own])}
    names = {number: text for text, number in vocabulary.items()}
    infilling = find_infilling(vocabulary.get)
    assert infilling is not None
    assert "".join(names[one] for one in infilling.prompt([0], [1])) == expected
    ends = {names[one] for one in infilling.end_ids}
    assert ends == {"<|endoftext|>", *own}
    # One of them alone is none.
    assert find_infilling({own[0]: 5, own[1]: 6}.get) is None


def save_with(directory: Path, backend: Backend, marks: list[str], *, special: bool) -> Backend:
    """Saves a model whose tokenizer has further tokens and begins each text with one."""
    other = Backend.from_str(backend.to_str())
    other.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    other.add_special_tokens(["<|begin|>"])
    begin = other.token_to_id("<|begin|>")
    other.post_processor = TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=other, eos_token="<|end|>", bos_token="<|begin|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    return other


@pytest_asyncio.fixture(params=["Qwen", "Codestral"], scope="module", loop_scope="session")
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, backend: Backend
) -> AsyncIterator[Gateway]:
    """A gateway before a model of one of two families; the tokens of one are no special ones."""
    directory = tmp_path_factory.mktemp("infilling") / "tiny"
    is_qwen = request.param == "Qwen"
    other = save_with(directory, backend, QWEN if is_qwen else MISTRAL, special=not is_qwen)
    async with starting(directory, load_tokenizer(str(directory)), other) as gateway:
        yield gateway


def ids_of(gateway: Gateway, text: str) -> list[int]:
    return gateway.backend.encode(text, add_special_tokens=False).ids


def asked(gateway: Gateway, prefix: str, suffix: str) -> list[int]:
    """Returns the prompt that the scheduler is to get."""
    find: Any = gateway.backend.token_to_id
    before, after = ids_of(gateway, prefix), ids_of(gateway, suffix)
    if find("[SUFFIX]") is not None:
        return [find("<|begin|>"), find("[SUFFIX]"), *after, find("[PREFIX]"), *before]
    marks = [find(mark) for mark in QWEN]
    return [find("<|begin|>"), marks[0], *before, marks[1], *after, marks[2]]


async def test_the_prompt_has_what_stands_around_the_answer(gateway: Gateway) -> None:
    for prefix, suffix in (
        (PREFIX, SUFFIX),
        ("", SUFFIX),
        (PREFIX, "\n"),
        ("東", "\N{ROCKET} fox"),
    ):
        gateway.say("argument")
        answer = await gateway.answer(COMPLETIONS, prompt=prefix, suffix=suffix)
        expected = asked(gateway, prefix, suffix)
        assert tokens(gateway.adds[-1].prompt_token_ids) == expected
        assert answer["choices"][0]["text"] == "argument"
        assert answer["usage"]["prompt_tokens"] == len(expected)


async def test_a_mark_or_another_file_ends_the_answer(gateway: Gateway) -> None:
    marks = [gateway.backend.token_to_id(mark) for mark in (*QWEN, *MISTRAL)]
    known = {mark for mark in marks if mark is not None}
    own = {5, EOS}
    gateway.say("argument")
    for fields, expected in (
        ({"suffix": SUFFIX}, own | known),
        ({"suffix": SUFFIX, "ignore_eos": True}, {5}),
        ({}, own),
    ):
        await gateway.answer(COMPLETIONS, prompt=PREFIX, stop_token_ids=[5], **fields)
        assert set(tokens(gateway.adds[-1].stop_token_ids)) == expected
    # It is not shown, though it may be no special token.
    last = next(iter(known))
    gateway.scheduler.script = Script([Step([*ids_of(gateway, "argument"), last])])
    answer = await gateway.answer(COMPLETIONS, prompt=PREFIX, suffix=SUFFIX)
    assert answer["choices"][0]["text"] == "argument"


async def test_a_prediction_has_the_line_ends_around_the_answer(gateway: Gateway) -> None:
    gateway.say("argument")
    suffix = SUFFIX.replace("\n", "\r\n")
    fields = {"prediction": {"type": "content", "content": "index\nindex"}}
    await gateway.answer(COMPLETIONS, prompt="print(", suffix=suffix, **fields)
    predicted = [gateway.backend.decode(one) for one in predictions(gateway.adds[-1])]
    assert predicted == ["index\r\nindex", "index\nindex"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"suffix": "index " * 2 * MAX_MODEL_LEN}, "suffix", "context_length_exceeded"),
        ({"suffix": "index\n" * (MAX_MODEL_LEN // 2)}, None, "context_length_exceeded"),
        ({"suffix": "a", "echo": True}, "suffix", "invalid_value"),
        ({"suffix": "a", "prompt": [10**6]}, "prompt", "invalid_value"),
    ],
)
async def test_what_is_refused(
    gateway: Gateway, fields: Fields, param: str | None, code: str
) -> None:
    error = await gateway.refused(COMPLETIONS, **{"prompt": PREFIX, **fields})
    assert error["code"] == code, error
    assert error["param"] == param or (param is None and error["param"] in ("suffix", "prompt"))


async def test_a_model_without_the_tokens_says_so(start: Start) -> None:
    async with start() as plain:
        error = await plain.refused(COMPLETIONS, suffix="end")
        assert (error["param"], error["code"]) == ("suffix", "unsupported_value")
        assert "fill in the middle" in error["message"]
        # It is a field of completions alone.
        plain.say("x")
        response = await plain.post(CHAT, suffix="end")
        assert response.headers["x-ignored-fields"] == "suffix"


async def test_sentencepiece_begins_no_suffix_with_a_space(tmp_path: Path) -> None:
    pieces = ["▁", "a", "▁a", "b", "ab", "▁ab", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    backend = Backend(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    marked = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence(marked)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    made = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    tokenizer = Tokenizer(made, {})
    for text, expected in (
        ("ab a", ["ab", "▁a"]),
        (" ab", ["▁ab"]),
        ("\nab", ["<0x0A>", "ab"]),
        ("", []),
        ("東", ["<0xE6>", "<0x9D>", "<0xB1>"]),
    ):
        token_ids = await tokenizer.encode_continued(text, 100)
        assert [backend.id_to_token(one) for one in token_ids] == expected
