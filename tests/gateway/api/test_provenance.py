"""Where text came from: segments join to the text, however it is split and held back."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from optimist_common.drafts import DraftSource
from optimist_gateway.core.answer.answer import Answer, Piece
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.output import Finished, FinishReason, StepOutput
from optimist_gateway.core.answer.provenance import Provenance, Segment, join_segments
from optimist_gateway.core.answer.spans import (
    PredictionSpans,
    PromptSpans,
    SentPrediction,
    SentText,
    SourceSpan,
    find_contents,
    joined_spans,
)
from tests.gateway.fake_scheduler import Script, Step
from tests.gateway.harness import CHAT, COMPLETIONS, RESPONSES, Fields, Gateway

END = 1
FOX = [{"role": "user", "content": "The fox"}]
TEXT = "The quick bröwn 東京 \N{ROCKET} ÄÖ fox\n"
NO_PROMPT = PromptSpans(9)


def answer(
    backend: Backend, spans: PredictionSpans, prompt: PromptSpans = NO_PROMPT, stop: Any = ()
) -> Answer:
    detokenizer = Detokenizer(backend.decode, {END})
    return Answer(5, detokenizer, stop, 0, provenance=Provenance(spans, prompt))


@st.composite
def steps(draw: st.DrawFn, token_ids: list[int], num_predicted: int) -> list[StepOutput]:
    """Splits tokens into steps, each with some accepted drafts that stand somewhere."""
    outputs = []
    start = 0
    while start < len(token_ids):
        count = draw(st.integers(1, 6))
        part = token_ids[start : start + count]
        accepted = draw(st.integers(0, len(part)))
        source = draw(st.sampled_from([DraftSource.PREDICTION, DraftSource.NGRAM]))
        prompt_positions = None
        positions: list[int] | None = None
        if source is DraftSource.PREDICTION:
            # None goes on where the draft before stood.
            anywhere = st.none() | st.integers(-1, num_predicted - 1)
            positions = []
            for place in draw(st.lists(anywhere, min_size=accepted, max_size=accepted)):
                following = min([-1, *positions][-1] + 1, num_predicted - 1)
                positions.append(following if place is None else place)
            if draw(st.booleans()):
                one = st.integers(0, 11)
                prompt_positions = draw(st.lists(one, min_size=accepted, max_size=accepted))
        step = StepOutput(part, accepted, source, None, None, positions, prompt_positions)
        outputs.append(replace(step, num_form_tokens=draw(st.integers(0, accepted))))
        start += count
    if draw(st.booleans()):
        return [*outputs, StepOutput([END], finished=Finished(FinishReason.STOP))]
    return [*outputs[:-1], replace(outputs[-1], finished=Finished(FinishReason.LENGTH))]


@given(st.data(), st.lists(st.sampled_from(["fox", "k b", "\N{ROCKET} Ä", "京", "zz"]), max_size=2))
def test_segments_join_to_the_text(backend: Backend, data: st.DataObject, stop: list[str]) -> None:
    token_ids = list(backend.encode(TEXT).ids)
    # Without their ends, answers end in half a character too.
    token_ids = token_ids[: data.draw(st.integers(1, len(token_ids)))]
    parts = [(0, 1), (1, 4), (4, 6), (6, 9)]
    spans = PredictionSpans([SentPrediction(0, [7, 8, 9, 10], parts), SentPrediction(2, [7, 8, 9])])
    outputs = data.draw(steps(token_ids, 7))
    plain = Answer(5, Detokenizer(backend.decode, {END}), stop, 0)
    texts = [SentText(0, 2, 5), SentText(1, 7, 9, 1)]
    prompt = PromptSpans(9, joined_spans([(at, at + 1) for at in range(9)]), texts)
    detailed = answer(backend, spans, prompt, stop)
    pieces: list[Piece] = []
    for output in outputs:
        expected, piece = plain.push(output), detailed.push(output)
        pieces.append(piece)
        assert piece.segments is not None
        assert "".join(one.text for one in piece.segments) == piece.text
        assert sum(one.num_tokens for one in piece.segments) == len(piece.token_ids)
        own = sum(one.num_tokens for one in piece.segments if one.source is DraftSource.TARGET)
        assert own == max(len(piece.token_ids) - output.num_accepted_tokens, 0)
        of_form = sum(one.num_tokens for one in piece.segments if one.source is DraftSource.FORM)
        assert of_form == max(len(piece.token_ids) - own - output.num_base_tokens, 0)
        assert piece.finish_reason == expected.finish_reason
        assert stop or piece.text == expected.text
        if piece.finish_reason is not None:
            break
    whole = join_segments([one for piece in pieces for one in piece.segments or ()])
    text = "".join(piece.text for piece in pieces)
    assert "".join(one.text for one in whole) == text
    assert sum(one.num_tokens for one in whole) == sum(len(piece.token_ids) for piece in pieces)
    assert plain.usage() == detailed.usage()


OF_TEXT = SentPrediction(0, [5, 6, 7, 8], [(0, 2), (2, 3), (3, 7), (7, 8)])
SPANS = PredictionSpans([OF_TEXT, SentPrediction(3, [5, 6, 7])])
# "<" "ab" "cd" ">" "<" " ef" ">": two messages, the second without the space that it begins with.
OF_TOKENS = [(0, 1), (1, 3), (3, 5), (5, 6), (6, 7), (7, 10), (10, 11)]
PROMPT = PromptSpans(7, OF_TOKENS, [SentText(0, 1, 5), SentText(3, 8, 10, 2)])


def in_message(message: int | None, start: int, end: int) -> SourceSpan:
    return SourceSpan(message, start, end, is_in_prompt=True)


def in_prompt_tokens(start: int, end: int) -> SourceSpan:
    return SourceSpan(None, start, end, is_in_tokens=True, is_in_prompt=True)


JUMPS = [(2, SourceSpan(0, 0, 3)), (1, SourceSpan(0, 7, 8))]
JUMPS += [(2, SourceSpan(3, 0, 2, is_in_tokens=True))]
MESSAGES = [(1, in_message(0, 2, 4)), (2, in_prompt_tokens(3, 5))]
MESSAGES += [(1, in_message(3, 2, 4)), (1, in_prompt_tokens(6, 7))]
REPEATED = [(1, SourceSpan(0, 3, 7)), (2, in_message(0, 0, 4)), (1, in_message(0, 2, 4)), (1, None)]


@pytest.mark.parametrize(
    ("positions", "prompt_positions", "prompt", "expected"),
    [
        ([0, 1, 3, 4, 5], None, NO_PROMPT, JUMPS),
        # Some are found nowhere, or beyond all that was sent.
        ([-1, -1, 2], None, NO_PROMPT, [(2, None), (1, SourceSpan(0, 3, 7))]),
        ([-1] * 5, [5, 4, 3, 2, 1], PROMPT, MESSAGES),
        ([2, -1, -1, -1, -1], [0, 6, 5, 5, 0], PROMPT, REPEATED),
        # Of a prompt that came as tokens.
        ([-1] * 3, [5, 4, 3], PromptSpans(7), [(3, in_prompt_tokens(2, 5))]),
        # Before the prompt.
        ([-1] * 2, [8, 7], PROMPT, [(1, None), (1, in_prompt_tokens(0, 1))]),
    ],
)
def test_a_segment_ends_where_the_position_jumps_or_a_message_ends(
    backend: Backend,
    positions: list[int],
    prompt_positions: list[int] | None,
    prompt: PromptSpans,
    expected: list[tuple[int, SourceSpan | None]],
) -> None:
    """Of a step of accepted drafts and a token of the model's."""
    ids, source = backend.encode("abcdefgh").ids[: len(positions) + 1], DraftSource.PREDICTION
    step = StepOutput(ids, len(positions), source, None, None, positions, prompt_positions)
    segments = answer(backend, SPANS, prompt).push(step).segments or []
    assert [(one.num_tokens, one.span) for one in segments] == [*expected, (1, None)]
    sources = [source if position >= 0 else DraftSource.NGRAM for position in positions]
    given_sources = [one.source for one in segments for _ in range(one.num_tokens)]
    assert given_sources == [*sources, DraftSource.TARGET]


@given(st.lists(st.text("ab \n", max_size=5), max_size=5), st.text("ab\n|", max_size=3))
def test_found_contents_are_what_the_client_sent(contents: list[str], between: str) -> None:
    text = between.join(["", *contents, ""])
    found = find_contents(text, contents)
    expected = [index for index, content in enumerate(contents) if content.strip()]
    assert [one.message for one in found] == expected
    for index, one in zip(expected, found, strict=True):
        content = contents[index][one.num_left_out :]
        assert content.startswith(text[one.start : one.end])


@st.composite
def byte_tokens(draw: st.DrawFn) -> list[bytes]:
    """A text of characters of one to four bytes, cut anywhere, also within and across them."""
    data = draw(st.text("a \u00e4\u20ac\N{ROCKET}", min_size=1, max_size=12)).encode()
    cuts = sorted(draw(st.sets(st.integers(1, len(data)), max_size=len(data))) | {len(data)})
    return [data[start:end] for start, end in pairwise([0, *cuts])]


def offsets_of(tokens: Sequence[bytes]) -> list[tuple[int, int]]:
    """As byte-level tokenizers give them: all of each character of which a token has a byte."""
    text = b"".join(tokens).decode()
    numbers = [number for number, char in enumerate(text) for _ in char.encode()]
    ends = list(accumulate(map(len, tokens)))
    return [
        (numbers[end - len(one)], numbers[end - 1] + 1)
        for one, end in zip(tokens, ends, strict=True)
    ]


def reading(tokens: Sequence[bytes]) -> Detokenizer:
    def decode(ids: Sequence[int]) -> str:
        return b"".join(tokens[one] for one in ids).decode(errors="replace")

    return Detokenizer(
        decode, (), {one: (decode([one]), tokens[one]) for one in range(len(tokens))}
    )


@given(byte_tokens())
def test_a_character_is_of_the_token_that_completes_it(tokens: list[bytes]) -> None:
    spans, text = joined_spans(offsets_of(tokens)), b"".join(tokens).decode()
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    assert spans[-1][1] == len(text)
    # As in an answer, in which it appears with that one.
    detokenizer = reading(tokens)
    shown = [detokenizer.push([number]) for number in range(len(tokens))]
    assert [text[start:end] for start, end in spans] == shown


@given(byte_tokens(), st.data())
def test_spans_are_right_at_any_border(tokens: list[bytes], data: st.DataObject) -> None:
    """An answer that is its prediction: pieces of it are drafts, and others the model's own."""
    text = b"".join(tokens).decode()
    sent = SentPrediction(0, list(range(len(tokens))), joined_spans(offsets_of(tokens)))
    provenance = Provenance(PredictionSpans([sent]), NO_PROMPT)
    answer = Answer(5, reading(tokens), (), 0, provenance=provenance)
    segments: list[Segment] = []
    start = 0
    while start < len(tokens):
        count = data.draw(st.integers(1, 4))
        ids = sent.token_ids[start : start + count]
        accepted = data.draw(st.integers(0, len(ids)))
        places = range(start, start + accepted)
        step = StepOutput(ids, accepted, DraftSource.PREDICTION, prediction_positions=[*places])
        segments += answer.push(step).segments or ()
        start += count
    whole = join_segments(segments)
    assert "".join(one.text for one in whole) == text
    for one in whole:
        if one.span is not None:
            assert text[one.span.start : one.span.end] == one.text


async def test_chunks_and_whole_answers_have_segments(gateway: Gateway) -> None:
    expected = "def  main(argument):\r\n    return 東京\r\n"
    predicted = expected.replace("\r\n", "\n")
    ids = list(gateway.backend.encode(predicted).ids)
    half, size = len(ids) // 2, len(ids)
    first_step = Step([*ids[:half], ids[half]], half, positions=range(half))
    rest = [*ids[half + 1 :], END]
    last_step = Step(rest, size - half - 1, positions=range(half + 1, size))
    gateway.scheduler.script = Script([first_step, last_step])
    prediction = {"type": "content", "content": expected}
    fields = {"prediction": prediction, "include_provenance": True}
    (choice,) = (await gateway.answer(COMPLETIONS, **fields))["choices"]
    assert gateway.adds[0].wants_prediction_positions
    first, own, last, _ = choice["provenance"]
    assert "".join(one["text"] for one in choice["provenance"]) == choice["text"] == predicted
    assert [one["source"] for one in choice["provenance"]] == ["prediction", "target"] * 2
    for segment in (first, last):
        span = segment["prediction"]
        assert span["index"] == 0
        assert predicted[span["start"] : span["end"]] == segment["text"]
    assert "prediction" not in own
    choices = [chunk["choices"][0] for chunk in await gateway.chunks(COMPLETIONS, **fields)]
    counts = [[one["num_tokens"] for one in chunk["provenance"]] for chunk in choices]
    assert counts == [[half, 1], [size - half - 1, 1], []]
    for chunk in choices:
        assert "".join(one["text"] for one in chunk["provenance"]) == chunk["text"]
    # Only those who ask learn of it.
    (choice,) = (await gateway.answer(COMPLETIONS, prediction=prediction))["choices"]
    assert "provenance" not in choice
    assert not gateway.adds[-1].wants_prediction_positions


COPY = [{"type": "text", "text": "Copy:\nThe fox"}]
SECOND = [{"role": "system", "content": "You copy."}, {"role": "user", "content": COPY}]
IN_MESSAGE = {"message": 0, "start": 0, "end": 7}


@pytest.mark.parametrize(
    ("path", "asked", "expected"),
    [
        (COMPLETIONS, {"prompt": "東\nThe fox"}, {"start": 2, "end": 9}),
        (COMPLETIONS, {"prompt": [40, 41, 42]}, {"token_start": 0, "token_end": 3}),
        (CHAT, {"messages": SECOND}, {"message": 1, "start": 6, "end": 13}),
        (RESPONSES, {"input": "The fox"}, IN_MESSAGE),
    ],
)
async def test_spans_in_the_prompt(
    gateway: Gateway, path: str, asked: Fields, expected: dict[str, int]
) -> None:
    prompt = asked.get("prompt")
    ids = prompt if isinstance(prompt, list) else list(gateway.backend.encode("The fox").ids)
    messages = asked.get("messages", FOX)
    whole = {"prompt": prompt} if isinstance(prompt, str) else {"messages": messages}
    prompt_ids = ids if prompt is ids else (await gateway.answer("/tokenize", **whole))["tokens"]
    # Drafts that were read from where they stand last in the prompt.
    size, length = len(ids), len(prompt_ids)
    (first,) = [at for at in range(length) if prompt_ids[at : at + size] == ids]
    positions = range(length - first, length - first - size, -1)
    step = Step([*ids, END], size, positions=[-1] * size, prompt_positions=positions)
    gateway.scheduler.script = Script([step])
    answer = await gateway.answer(path, include_provenance=True, **asked)
    document = (await gateway.http.get("/openapi.json")).json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
    schema = content["schema"] | {"components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert gateway.adds[0].wants_prediction_positions
    provenance = answer.get("provenance") or answer["choices"][0]["provenance"]
    assert provenance[0]["prompt"] == expected
    if path == COMPLETIONS:
        chunks = await gateway.chunks(path, include_provenance=True, **asked)
        assert chunks[0]["choices"][0]["provenance"][0]["prompt"] == expected
