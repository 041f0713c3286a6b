"""Predictions of one request on their way to the scheduler, with the prompt's line ends.

After Gitlawb/zero#376 and anthropics/claude-code#54876: a CR LF file as prompt and as prediction.
"""

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import Request
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.text.encode import MAX_LENGTHS, MAX_TOKENS, RequestEncoder
from optimist_gateway.text.line_ends import line_ends, sent_spans, with_lf, with_line_ends
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.fake_scheduler import EOS, MAX_MODEL_LEN, Script, Step, tokens
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Fields, Gateway

TEXTS = ["def main(argument):\r\n    return 1\r", "The quick brown fox", "東京 \N{ROCKET}"]


def content(text: Any) -> Fields:
    return {"type": "content", "content": text}


PARTS = [{"type": "text", "text": part} for part in ("The quick", " brown fox")]


def predictions(add: scheduler_pb2.Add) -> list[list[int]]:
    """Reads the predictions of a command as the contract says."""
    token_ids = tokens(add.predicted_token_ids)
    lengths = tokens(add.num_predicted_tokens) or [len(token_ids)]
    assert sum(lengths) == len(token_ids)
    return [token_ids[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


async def sent(gateway: Gateway, extra: Fields) -> list[list[int]]:
    """Returns the predictions that reach the scheduler through either endpoint."""
    gateway.say("x")
    await gateway.chat(extra)
    await gateway.complete(extra)
    chat, plain = (predictions(add) for add in gateway.adds)
    assert chat == plain
    return chat


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (content(TEXTS[0]), TEXTS[:1]),
        (content(PARTS), TEXTS[1:2]),
        ([content(TEXTS[0]), content(PARTS), content(TEXTS[2])], TEXTS),
        # Up to the limit.
        ([content("ä" * 10_000), content("a" * 40_000)], ["ä" * 10_000, "a" * 40_000]),
    ],
    ids=["one", "parts", "several", "long"],
)
async def test_texts(gateway: Gateway, given: Any, expected: list[str]) -> None:
    texts = [text.replace("\r\n", "\n").replace("\r", "\n") for text in expected]
    ids = [gateway.backend.encode(text).ids[:MAX_MODEL_LEN] for text in texts]
    assert await sent(gateway, {"prediction": given}) == ids


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prediction": [content(""), content("fox"), content([])]}, ["fox"]),
        ({"predicted_token_ids": [[], [], []]}, [""]),
        ({"predicted_token_ids": None, "prediction": None}, [""]),
    ],
)
async def test_what_is_empty(gateway: Gateway, given: Fields, expected: list[str]) -> None:
    encoded = [gateway.backend.encode(text).ids for text in expected]
    assert await sent(gateway, given) == encoded
    # One prediction, or none, reads as it did before there could be several.
    assert gateway.adds[0].num_predicted_tokens == b""


async def test_a_long_model_has_no_more_than_the_scheduler_takes(tokenizer: Tokenizer) -> None:
    model = ModelDescription(512, MAX_TOKENS + 5, (1,))

    async def lengths(*wanted: int) -> list[int]:
        given = [[5] * length for length in wanted]
        request = Request(model="tiny", prompts=("a",), predictions=given)
        sent = await RequestEncoder(request, tokenizer, model).predictions(1)
        return [len(one.token_ids) for one in sent]

    assert await lengths(MAX_TOKENS + 1) == [MAX_TOKENS]
    assert await lengths(1, MAX_TOKENS - 1) == [1, MAX_TOKENS - 1]
    with pytest.raises(FieldError) as caught:
        await lengths(1, MAX_TOKENS)
    assert caught.value.path == ("predictions", 1)


LF = "def area(width, height):\n    return width * height\n\n\nclass Shape:\n    pass\n"
CRLF = LF.replace("\n", "\r\n")
ASK = "Rename `height` to `depth`."
OTHER = "".join(f"Rule {number} of many.\n" for number in range(50))
MIXED = CRLF.replace("pass\r\n", "pass\n")


def user(*contents: Any) -> Fields:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def predict(*texts: str) -> Fields:
    return {"prediction": [{"type": "content", "content": text} for text in texts]}


async def predicted(gateway: Gateway, path: str, fields: Fields) -> list[str]:
    """Returns the texts of the predictions that the scheduler gets."""
    gateway.say("x")
    await gateway.answer(path, **fields)
    return [gateway.backend.decode(one) for one in predictions(gateway.adds[-1])]


def forms(text: str) -> list[str]:
    """Returns a text as it is expected, and then as a model writes it that knows LF alone."""
    return list(dict.fromkeys([text, with_lf(text)]))


@pytest.mark.parametrize(
    ("prompt", "sent", "expected"),
    [
        (f"{ASK}\n\n{LF}", LF, LF),
        (f"{ASK}\n\n{CRLF}", CRLF, CRLF),
        # An editor or a browser's form has changed one of them.
        (f"{ASK}\n\n{LF}", CRLF, LF),
        (f"{ASK}\n\n{CRLF}", LF, CRLF),
        # More lines of the prompt end with LF, but not those of the file.
        (f"{OTHER}\n{CRLF}", LF, CRLF),
        (f"{OTHER}\n{LF}\n{OTHER.replace('Rule', 'Old')}", CRLF, LF),
        # Files whose lines end in more than one way stay as they are.
        (f"{ASK}\n\n{MIXED}", MIXED, MIXED),
        # Of another text than the prompt's.
        ("Write a class\r\nwith two fields.\r\n", LF, CRLF),
        # Models write LF if they read no line ends.
        (ASK, CRLF, LF),
        # A bar that a terminal drew is no line of the file.
        (f"10 %\r20 %\r100 %\r\n{LF}", LF, LF),
    ],
)
async def test_it_has_those_of_the_prompt(
    gateway: Gateway, prompt: str, sent: str, expected: str
) -> None:
    for path, asked in (
        (COMPLETIONS, {"prompt": prompt}),
        (COMPLETIONS, {"prompt": gateway.backend.encode(prompt).ids}),
        (CHAT, user([{"type": "text", "text": part} for part in (prompt[:9], prompt[9:])])),
        (RESPONSES, {"instructions": ASK, "input": user(prompt)["messages"]}),
    ):
        assert await predicted(gateway, path, asked | predict(sent)) == forms(expected)


async def test_there_is_but_one_form_without_room_for_two(gateway: Gateway) -> None:
    # As many predictions as may be; as many tokens as may be.
    assert len(await predicted(gateway, CHAT, user(CRLF) | predict(*[CRLF] * 15))) == 16
    assert len(await predicted(gateway, CHAT, user(CRLF) | predict(*[CRLF] * 16))) == 16
    line = "def main(argument):\r\n"
    long = line * (MAX_LENGTHS * MAX_MODEL_LEN // len(gateway.backend.encode(line).ids))
    sent = predict(*[long[: len(long) // 4]] * 4)
    assert len(await predicted(gateway, CHAT, user(line) | sent)) == 4


@pytest.mark.parametrize(("prompt", "sent"), [(LF, CRLF), (CRLF, LF)])
async def test_provenance_counts_characters_as_they_were_sent(
    gateway: Gateway, prompt: str, sent: str
) -> None:
    ids = gateway.backend.encode(prompt).ids
    first = Step(ids[:4], 3, positions=range(3))
    last = Step([*ids[4:], EOS], len(ids) - 4, positions=range(4, len(ids)))
    gateway.scheduler.script = Script([first, last])
    fields = user(prompt) | predict(sent) | {"include_provenance": True}
    (choice,) = (await gateway.answer(CHAT, **fields))["choices"]
    spans = [one["prediction"] for one in choice["provenance"] if "prediction" in one]
    texts = [one["text"] for one in choice["provenance"] if "prediction" in one]
    assert len(spans) == 2
    shown = [sent[span["start"] : span["end"]] for span in spans]
    assert [one.splitlines() for one in shown] == [one.splitlines() for one in texts]
    assert (spans[1]["end"], sent[: spans[0]["end"]]) == (len(sent), shown[0])


async def test_provenance_of_an_answer_with_lf_to_a_prompt_with_cr_lf(gateway: Gateway) -> None:
    ids, begin = gateway.backend.encode(LF).ids, len(gateway.backend.encode(CRLF).ids)
    positions = range(begin, begin + len(ids))
    gateway.scheduler.script = Script([Step([*ids, EOS], len(ids), positions=positions)])
    fields = user(CRLF) | predict("", CRLF) | {"include_provenance": True}
    (choice,) = (await gateway.answer(CHAT, **fields))["choices"]
    assert choice["message"]["content"] == LF
    span = {"index": 1, "start": 0, "end": len(CRLF)}
    assert choice["provenance"][0]["prediction"] == span


ANY_TEXT = st.text("ab \r\n", max_size=40)


@given(ANY_TEXT, st.lists(ANY_TEXT, max_size=3))
def test_nothing_but_line_ends_changes_and_only_once(sent: str, prompts: list[str]) -> None:
    prompt = line_ends(prompts)
    read = with_line_ends(sent, prompt)
    assert with_line_ends(read, prompt) == read
    lines, read_lines = (text.splitlines() for text in (sent, read))
    assert lines == read_lines
    # The spans of the characters follow each other, and have all that was sent.
    characters = [(place, place + 1) for place in range(len(read))]
    spans = sent_spans(characters, read, sent)
    assert "".join(sent[start:end] for start, end in spans) == sent
    for (start, end), (place, _) in zip(spans, characters, strict=True):
        if read[place] not in "\r\n":
            assert sent[start:end] == read[place]
