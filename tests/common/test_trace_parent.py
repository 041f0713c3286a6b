import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_common.observing.tracing import TraceParent, parse_trace_parent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f" 00-{TRACE}-{SPAN}-03 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-add", True),
    ],
)
def test_reads_what_the_standard_allows(text: str, is_sampled: bool) -> None:
    assert parse_trace_parent(text) == TraceParent(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}",
    ],
)
def test_ignores_what_is_none(text: str) -> None:
    assert parse_trace_parent(text) is None


@given(
    st.builds(
        TraceParent,
        st.integers(1, 2**128 - 1).map(lambda number: f"{number:032x}"),
        st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}"),
        st.booleans(),
    )
)
def test_reads_what_it_writes(parent: TraceParent) -> None:
    assert parse_trace_parent(str(parent)) == parent


@given(st.text(max_size=80))
def test_no_text_is_an_error(text: str) -> None:
    parse_trace_parent(text)
