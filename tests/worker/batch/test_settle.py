"""What a pass makes of its rows: the state moves on until requests end."""

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.core.batch.results import settle_rows
from optimist_worker.core.batch.slot_table import FittedRows
from tests.worker.tables import Tables, make_tables

PROMPT = [1, 2, 3, 4, 5]


def admitted() -> Tables:
    """Two requests with the same prompt."""
    tables = make_tables()
    for slot in (0, 1):
        tables.admit(slot, PROMPT, min_length=7, max_length=12, stop_token_ids=[30, 31])
    return tables


def verdict_of(*rows: tuple[Sequence[int], int], broken: Sequence[int] = ()) -> Verdict:
    """Tokens of each row, and how many drafts were accepted."""
    width = max(len(tokens) for tokens, _ in rows)
    return Verdict(
        token_ids=torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens, _ in rows]),
        num_accepted=torch.tensor([number for _, number in rows]),
        path=None,
        is_sound=torch.tensor([row not in broken for row in range(len(rows))]),
    )


def state(tables: Tables, slot: int) -> tuple[int, int, bool]:
    """Verified and computed tokens, and whether the request has ended."""
    columns = tables.table.gather(torch.tensor([slot]))
    return int(columns.num_tokens), int(columns.num_computed_tokens), bool(columns.has_ended)


def settle(tables: Tables, rows: FittedRows, verdict: Verdict) -> list[int]:
    number, lengths = settle_rows(tables.table, rows, verdict)
    assert lengths.tolist() == [state(tables, slot)[0] for slot in rows.slots.tolist()]
    emitted: list[int] = number.tolist()
    return emitted


@given(st.data())
def test_what_rows_emit_is_kept_until_their_requests_end(data: st.DataObject) -> None:
    tables, texts = admitted(), {slot: list(PROMPT) for slot in (0, 1)}
    computed, has_ended = dict.fromkeys(texts, 0), dict.fromkeys(texts, False)
    for _ in range(4):
        slots = data.draw(st.permutations(list(texts)))
        sizes = [data.draw(st.tuples(st.integers(1, 9), st.integers(0, 6))) for _ in slots]
        rows = tables.fit(*((slot, *size) for slot, size in zip(slots, sizes, strict=True)))
        said = []
        for limit in rows.limits.tolist():
            number = data.draw(st.integers(0, limit))
            outputs = st.lists(st.sampled_from([20, 21, 30, 31]), min_size=number + 1, max_size=9)
            said.append((data.draw(outputs), number))
        broken = data.draw(st.sets(st.integers(0, 1), max_size=1))
        emitted = settle(tables, rows, verdict_of(*said, broken=list(broken)))
        for row, slot in enumerate(slots):
            tokens, number = said[row]
            kept = tokens[: number + 1] if rows.emits[row] and row not in broken else []
            assert emitted[row] == len(kept)
            if row not in broken:
                computed[slot] += int(rows.num_known_tokens[row]) + max(0, len(kept) - 1)
            # What was accepted after a stop token is still reported.
            for token in kept:
                texts[slot].append(token)
                has_ended[slot] |= token in (30, 31) and len(texts[slot]) >= 7
            has_ended[slot] |= len(texts[slot]) >= 12
            assert state(tables, slot) == (len(texts[slot]), computed[slot], has_ended[slot])
            padding = [0] * (14 - len(texts[slot]))
            assert tables.table.token_ids[slot, :14].tolist() == texts[slot] + padding
