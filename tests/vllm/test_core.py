"""A prediction reaches the plugin as the client sent it, and its drafts are accounted for."""

import dataclasses
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner import FLOAT32, INT32, Draft, Follower, Reference
from optimist_vllm.core.account import Account
from optimist_vllm.core.followed_request import FollowedRequest
from optimist_vllm.core.payload import PAYLOAD, TEXT, Payload, Report, take_attached
from optimist_vllm.core.prediction import MAX_CHARACTERS, MAX_PREDICTIONS, read_prediction
from optimist_vllm.core.width import MAX_DRAFTS, DraftWidths


def content(value: object) -> dict[str, object]:
    return {"type": "content", "content": value}


def test_reads_predictions() -> None:
    for field, texts in (
        (content("a\r\nb\rc"), ["a\nb\nc"]),
        (content([{"type": "text", "text": each} for each in "ab"]), ["ab"]),
        ([content("a"), content("b")], ["a", "b"]),
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([], []),
    ):
        assert read_prediction(field) == texts


def test_refuses_what_is_no_prediction_without_quoting_it() -> None:
    for field in (
        *(1, None, {}, {"type": "content"}, content(1), content(["secret"]), [["secret"]]),
        {"type": "file", "content": "secret"},
        content([{"type": "text", "text": 1}]),
        content([{"type": "image", "text": "secret"}]),
        ["secret"] * (MAX_PREDICTIONS + 1),
        "secret" * (MAX_CHARACTERS // 6 + 1),
    ):
        with pytest.raises(ValueError, match=r"^prediction: ") as error:
            read_prediction(field)
        assert "secret" not in str(error.value)


PREDICTIONS = st.lists(st.lists(st.integers(0, 2**31 - 1)))


@given(PREDICTIONS, st.dictionaries(st.text(), st.integers()), st.booleans())
def test_a_payload_arrives_and_nothing_else_is_touched(
    predictions: list[list[int]], others: dict[str, int], is_sent: bool
) -> None:
    others.pop(PAYLOAD, None)
    others.pop(TEXT, None)
    payload = Payload.of(7, predictions)
    num_tokens = sum(map(len, predictions))
    assert repr(payload) == f"<prediction of {num_tokens} tokens>"
    extra_args = {**others, PAYLOAD: dataclasses.asdict(payload) if is_sent else payload}
    attached, rest = take_attached(extra_args)
    assert attached.key == 7
    assert [each.tolist() for each in attached.predictions] == predictions
    assert rest == (others or None)
    assert PAYLOAD in extra_args


@given(st.lists(st.integers(-3, 2)), st.integers(0, 20))
def test_what_the_client_does_not_get_is_not_accepted(
    positions: list[int], num_delivered: int
) -> None:
    before, is_predicted = 3, [position >= 0 for position in positions]
    report = Report(0, before + sum(is_predicted), 0, positions, 0, 0)
    assert report.count_accepted(num_delivered) == before + sum(is_predicted[:num_delivered])


PASSES = st.lists(st.tuples(st.lists(st.integers(-2, 9), max_size=12), st.integers(0, 12)))


@given(PASSES)
def test_accounts_are_those_of_a_simpler_count(passes: list[tuple[list[int], int]]) -> None:
    account = Account(10)
    kept, drafted = [], set()
    for positions, num_kept in passes:
        account.settle(positions, num_kept)
        kept += [position for position in positions[:num_kept] if position >= 0]
        drafted |= {position for position in positions if position >= 0}
        assert account.num_accepted == len(kept)
        assert account.num_rejected == len(drafted - set(kept))


ROW = st.lists(st.floats(0.001, 1), max_size=128).map(lambda row: sorted(row)[::-1])
ROWS = st.lists(ROW, max_size=40)
BOUNDS = (1, 4096), (0, 512), (0, 64), (0, 64), (1, 10**9)
TIMES = st.lists(st.tuples(*(st.integers(*each) for each in BOUNDS)), max_size=20)


@given(ROWS, TIMES)
def test_widths_stay_within_rows_and_the_bound_of_a_pass(
    values: list[list[float]], times: list[tuple[int, int, int, int, int]]
) -> None:
    widths = DraftWidths()
    for num_tokens, num_drafts, num_rows, num_emitted, pass_ns in times:
        widths.observe_pass(num_tokens + num_drafts, num_drafts, num_rows, num_emitted, pass_ns)
    chosen = widths.choose(values, max(1, len(values)))
    assert len(chosen) == len(values)
    assert all(0 <= width <= len(row) for width, row in zip(chosen, values, strict=True))
    assert sum(chosen) <= MAX_DRAFTS
    assert 0 < widths.least_value <= 0.5
    # The best ones are taken, whichever rows they belong to.
    taken = [value for width, row in zip(chosen, values, strict=True) for value in row[:width]]
    left = [value for width, row in zip(chosen, values, strict=True) for value in row[width:]]
    assert min(taken, default=1.0) >= max(left, default=0.0) or not taken


def test_drafts_as_much_as_pays() -> None:
    row = [0.9**index for index in range(1, 65)]
    chosen = []
    for slope in (0, 100_000, 1_000_000, 10_000_000):
        widths = DraftWidths()
        for num_tokens in (1, 2, 4, 8, 16, 32, 64) * 20:
            widths.observe_pass(num_tokens, num_tokens - 1, 1, 1, 1_000_000 + slope * num_tokens)
        chosen += widths.choose([row], 1)
    assert chosen[0] == 64
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[-1] == 0


def test_prompts_do_not_make_drafts_look_cheap() -> None:
    rows = [[0.5] * 64 for _ in range(8)]
    widths = DraftWidths()
    for num_drafts in (0, 8, 24, 56) * 5:
        # A draft takes an eighth of a pass without any, and brings half a token.
        pass_ns = (8 + num_drafts) * 1_000_000
        widths.observe_pass(8 + num_drafts, num_drafts, 8, 8 + num_drafts // 2, pass_ns)
        widths.observe_pass(4096, 0, 8, 8, 8_000_000)
    assert sum(widths.choose(rows, 8)) == 0


def test_a_pass_has_at_most_twice_the_tokens_of_the_largest_before() -> None:
    row = [0.9] * 64
    widths, chosen = DraftWidths(), []
    for _ in range(4):
        (width,) = widths.choose([row], 1)
        widths.observe_pass(1 + width, width, 1, 1, 1_000_000)
        chosen.append(width)
    assert chosen == [16, 33, 64, 64]


class _Repeating(Follower, Reference):
    """Expects `expected`, from the output's end on."""

    def __init__(self, expected: list[int], value: float) -> None:
        self.expected, self.value = expected, value
        self.output: list[int] = []

    @property
    def num_bytes(self) -> int:
        return 0

    def follow(self) -> "_Repeating":
        return _Repeating(self.expected, self.value)

    def observe(self, token_ids: "array[int]") -> None:
        self.output += token_ids

    def propose(self, max_tokens: int, min_value: float) -> Draft:
        rest = self.expected[len(self.output) :][:max_tokens]
        values = [self.value ** (index + 1) for index in range(len(rest))]
        nodes = range(sum(value >= min_value for value in values))
        return Draft(
            array(INT32, rest[: len(nodes)]),
            array(INT32, [node - 1 for node in nodes]),
            array(INT32, [len(self.output) + node for node in nodes]),
            array(FLOAT32, values[: len(nodes)]),
        )


@pytest.mark.parametrize(("num_predicted", "least", "most"), [(0, 10, 25), (1000, 60, 90)])
def test_what_gains_nothing_rests(num_predicted: int, least: int, most: int) -> None:
    followed = FollowedRequest(_Repeating(list(range(1000, 2000)), 0.3), num_predicted)
    looks, output = 0, []
    for token_id in range(200):
        output.append(token_id)
        if followed.is_due(len(output), 0.0):
            looks += 1
            path = followed.find_path(output, 64, 0.01, 0.0)
            # What promises less than a token wakes nobody.
            assert num_predicted or not path.token_ids
            followed.draft(path.positions)
        followed.settle([token_id + 1], [])
    assert least <= looks <= most


def test_what_promises_a_token_wakes() -> None:
    followed = FollowedRequest(_Repeating(list(range(100)), 0.9), 0)
    path = followed.find_path([0], 64, 0.01, 0.0)
    assert path.token_ids.tolist()[:3] == [1, 2, 3]
    # Read from the prompt.
    followed.draft([-1, -2, -3])
    followed.settle([1, 2, 3, 4], [1, 2, 3])
    assert followed.is_due(5, 0.0)


def test_a_high_price_lets_a_request_rest_that_gains_less() -> None:
    followed = FollowedRequest(_Repeating(list(range(100)), 0.9), 100)
    followed.find_path([0], 64, 0.01, 20.0)
    assert not followed.is_due(2, 20.0)
    assert followed.is_due(2, 0.1)
    assert followed.is_due(17, 20.0)


def test_an_output_that_was_taken_back_is_followed_anew() -> None:
    followed = FollowedRequest(_Repeating(list(range(100)), 0.9), 100)
    followed.find_path([0, 1, 2, 3], 8, 0.01, 0.0)
    assert followed.find_path([0, 1], 4, 0.01, 0.0).token_ids.tolist() == [2, 3, 4, 5]
