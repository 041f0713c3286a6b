"""Where text came from: segments join to the text, however it is split and held back."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from optimist_common.draft_source import DraftSource
from optimist_gateway.core.answer import Answer, Piece
from optimist_gateway.core.detail import Detail
from optimist_gateway.core.detokenize import Detokenizer
from optimist_gateway.core.finish import FinishReason
from optimist_gateway.core.output import Finished, StepOutput
from optimist_gateway.core.prediction_places import (
    Place,
    PredictionPlaces,
    SentPrediction,
    joined_spans,
)
from optimist_gateway.core.provenance import Provenance, Segment, join_segments
from tests.gateway.fake_scheduler import FakeScheduler, Script, Step

END = 1
TEXT = "The quick bröwn 東京 \N{ROCKET} ÄÖ fox\n"


def answer(backend: Backend, places: PredictionPlaces, stop: Sequence[str] = ()) -> Answer:
    detail = Detail(None, Provenance(places))
    return Answer(5, Detokenizer(backend.decode, {END}), stop, 0, detail)


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
        positions = None
        if source is DraftSource.PREDICTION:
            first = draw(st.integers(-1, num_predicted - 1))
            jumps = draw(st.lists(st.booleans(), min_size=accepted, max_size=accepted))
            positions = []
            for jump in jumps:
                positions.append(first)
                first = draw(st.integers(-1, num_predicted - 1)) if jump else first + 1
                first = min(first, num_predicted - 1)
        outputs.append(StepOutput(part, accepted, source, None, None, positions))
        start += count
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    if reason is FinishReason.STOP:
        outputs.append(StepOutput([END], finished=Finished(reason)))
    else:
        last = outputs.pop()
        outputs.append(
            StepOutput(
                last.token_ids,
                last.num_accepted_tokens,
                last.draft_source,
                Finished(reason),
                None,
                last.prediction_positions,
            )
        )
    return outputs


@given(st.data(), st.lists(st.sampled_from(["fox", "k b", "\N{ROCKET} Ä", "京", "zz"]), max_size=2))
def test_segments_join_to_the_text(backend: Backend, data: st.DataObject, stop: list[str]) -> None:
    token_ids = list(backend.encode(TEXT).ids)
    # Without their ends, answers end in half a character too.
    token_ids = token_ids[: data.draw(st.integers(1, len(token_ids)))]
    spans = [(0, 1), (1, 4), (4, 6), (6, 9)]
    places = PredictionPlaces(
        [SentPrediction(0, [7, 8, 9, 10], spans), SentPrediction(2, [7, 8, 9])]
    )
    outputs = data.draw(steps(token_ids, 7))
    plain = Answer(5, Detokenizer(backend.decode, {END}), stop, 0)
    detailed = answer(backend, places, stop)
    pieces: list[Piece] = []
    for output in outputs:
        expected = plain.push(output)
        piece = detailed.push(output)
        pieces.append(piece)
        assert piece.segments is not None
        assert "".join(one.text for one in piece.segments) == piece.text
        assert sum(one.num_tokens for one in piece.segments) == len(piece.token_ids)
        accepted = sum(
            one.num_tokens for one in piece.segments if one.source is not DraftSource.TARGET
        )
        assert accepted == min(output.num_accepted_tokens, len(piece.token_ids))
        assert piece.finish_reason == expected.finish_reason
        if piece.finish_reason is not None:
            break
    whole = join_segments([one for piece in pieces for one in piece.segments or ()])
    text = "".join(piece.text for piece in pieces)
    assert "".join(one.text for one in whole) == text
    assert sum(one.num_tokens for one in whole) == sum(len(piece.token_ids) for piece in pieces)
    assert plain.usage() == detailed.usage()


@given(st.data())
def test_text_does_not_depend_on_whether_it_is_told_where_it_came_from(
    backend: Backend, data: st.DataObject
) -> None:
    token_ids = list(backend.encode(TEXT).ids)
    outputs = data.draw(steps(token_ids, 7))
    plain = Answer(5, Detokenizer(backend.decode, {END}), [], 0)
    detailed = answer(backend, PredictionPlaces([SentPrediction(0, list(range(7)))]))
    texts = [[one.push(output).text for output in outputs] for one in (plain, detailed)]
    assert texts[0] == texts[1]


def segments_of(backend: Backend, positions: list[int], places: PredictionPlaces) -> list[Segment]:
    """Returns the segments of a step of accepted drafts and a token of the model's."""
    token_ids = backend.encode("abcdefgh").ids[: len(positions) + 1]
    output = StepOutput(token_ids, len(positions), DraftSource.PREDICTION, None, None, positions)
    return answer(backend, places).push(output).segments or []


PLACES = PredictionPlaces(
    [
        SentPrediction(0, [5, 6, 7, 8], [(0, 2), (2, 3), (3, 7), (7, 8)]),
        SentPrediction(3, [5, 6, 7]),
    ]
)


def test_a_segment_ends_where_the_place_jumps(backend: Backend) -> None:
    segments = segments_of(backend, [0, 1, 3, 4, 5], PLACES)
    assert [(one.num_tokens, one.place) for one in segments] == [
        (2, Place(0, 0, 3)),
        (1, Place(0, 7, 8)),
        (2, Place(3, 0, 2, is_in_tokens=True)),
        (1, None),
    ]


def test_drafts_that_stand_nowhere_have_no_place(backend: Backend) -> None:
    segments = segments_of(backend, [-1, -1, 2], PLACES)
    assert [(one.num_tokens, one.place) for one in segments] == [
        (2, None),
        (1, Place(0, 3, 7)),
        (1, None),
    ]


def test_places_beyond_the_predictions_are_none() -> None:
    assert PLACES.place(7, 1) is None
    assert PLACES.place(-1, 1) is None
    assert PredictionPlaces([]).place(0, 1) is None


def test_what_goes_on_is_one_segment_of_the_whole() -> None:
    target = DraftSource.TARGET
    predicted = DraftSource.PREDICTION
    parts = [
        Segment(0, predicted, "ab", 2, Place(0, 0, 2)),
        Segment(1, predicted, "", 1, Place(0, 2, 3)),
        Segment(1, predicted, "c", 0),
        Segment(2, predicted, "x", 1, Place(0, 9, 10)),
        Segment(3, target, "y", 1),
        Segment(4, target, "z", 2),
    ]
    assert join_segments(parts) == [
        Segment(0, predicted, "abc", 3, Place(0, 0, 3)),
        Segment(2, predicted, "x", 1, Place(0, 9, 10)),
        Segment(3, target, "yz", 3),
    ]


@given(st.text(), st.data())
def test_spans_leave_nothing_out(text: str, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    # Some tokenizers leave spaces out, at either end.
    spans = [(min(end, data.draw(st.integers(0, len(text)))), end) for end in ends]
    joined = joined_spans(spans)
    assert [end for _, end in joined] == ends
    assert [start for start, _ in joined] == [0, *ends][: len(ends)]


async def test_chunks_and_whole_answers_tell(
    http: httpx.AsyncClient, scheduler: FakeScheduler, backend: Backend
) -> None:
    expected = "def  main(argument):\r\n    return 東京\r\n"
    predicted = expected.replace("\r\n", "\n")
    ids = list(backend.encode(predicted).ids)
    half = len(ids) // 2
    scheduler.script = Script(
        [
            Step([*ids[:half], ids[half]], half, positions=range(half)),
            Step([*ids[half + 1 :], END], len(ids) - half - 1, positions=range(half + 1, len(ids))),
        ]
    )
    body = {
        "model": "tiny",
        "prompt": "a",
        "prediction": {"type": "content", "content": expected},
        "include_provenance": True,
    }
    (choice,) = (await http.post("/v1/completions", json=body)).json()["choices"]
    assert scheduler.adds[0].wants_prediction_positions
    first, own, last, end = choice["provenance"]
    assert "".join(one["text"] for one in choice["provenance"]) == choice["text"] == predicted
    assert [one["source"] for one in (first, own, last, end)] == [
        "prediction",
        "target",
        "prediction",
        "target",
    ]
    for segment in (first, last):
        place = segment["prediction"]
        assert place["index"] == 0
        assert predicted[place["start"] : place["end"]] == segment["text"]
    assert "prediction" not in own
    chunks = await chunks_of(http, body)
    told = [chunk["choices"][0] for chunk in chunks]
    assert [[one["num_tokens"] for one in chunk["provenance"]] for chunk in told] == [
        [half, 1],
        [len(ids) - half - 1, 1],
    ]
    for chunk in told:
        assert "".join(one["text"] for one in chunk["provenance"]) == chunk["text"]


async def test_predicted_tokens_have_places_in_tokens(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script([Step([40, 41, 50, END], 2, positions=[1, 2])])
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "predicted_token_ids": [[], [39, 40, 41]],
        "include_provenance": True,
    }
    (choice,) = (await http.post("/v1/chat/completions", json=body)).json()["choices"]
    place = choice["provenance"][0]["prediction"]
    assert place == {"index": 1, "token_start": 1, "token_end": 3}


async def test_an_echoed_prompt_is_a_segment(
    http: httpx.AsyncClient, scheduler: FakeScheduler
) -> None:
    scheduler.script = Script([Step([40, END])])
    body = {"model": "tiny", "prompt": "The fox", "echo": True, "include_provenance": True}
    (choice,) = (await http.post("/v1/completions", json=body)).json()["choices"]
    assert [one["source"] for one in choice["provenance"]] == ["prompt", "target"]
    assert choice["provenance"][0]["text"] == "The fox"


async def chunks_of(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the chunks of a streamed answer of /v1/completions."""
    response = await http.post("/v1/completions", json=body | {"stream": True})
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(one) for one in events]
