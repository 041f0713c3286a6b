"""The benchmark of drafts from the form of answers."""

from collections.abc import Iterator

import pytest

from optimist_bench.__main__ import main
from optimist_bench.forms.command import WAYS, Answer, Form, Language
from optimist_bench.forms.simulator import find_path
from optimist_bench.harness.kinds import STYLES, derive_schema, load_kinds
from optimist_worker.grammar.draft_tree import FormDraft
from tests.bench.conftest import ReportOf
from tests.stack import BUNDLED_MODEL

FLAGS = ("--tokenizer", str(BUNDLED_MODEL), "--kinds", "sentiment,call_get_weather")


def test_the_report_counts_all_tokens_of_every_way(report_of: ReportOf) -> None:
    report = report_of("forms", *FLAGS)
    assert report["all_right"]
    assert (report["kinds"], report["answers"]) == (2, 2 * len(STYLES))
    for share, ways in report["by_share"].items():
        assert list(ways) == list(WAYS)
        for one in ways.values():
            parts = one["by_style"].values()
            assert list(one["by_style"]) == list(STYLES)
            for name in ("passes", "drafted", "accepted", "form_drafted", "form_accepted"):
                assert one[name] == sum(part[name] for part in parts)
            # An accepted end token has none after it.
            rest = report["output_tokens"] - one["passes"] - one["accepted"]
            assert -report["answers"] <= rest <= 0
            cost = one["passes"] + float(share) * one["drafted"]
            assert one["speedup"] == pytest.approx(report["output_tokens"] / cost, abs=1e-4)
            assert one["worst_speedup"] == one["speedup_by_kind"][one["worst_kind"]]
        assert ways["nothing"]["speedup"] == ways["nothing"]["tokens_per_pass"] == 1
        assert ways["forced"]["accepted"] == ways["forced"]["drafted"] > 0
        assert ways["forced"]["worst_speedup"] >= 1
        assert ways["form"]["tokens_per_pass"] >= ways["forced"]["tokens_per_pass"]


def test_the_table_has_a_row_for_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forms", *FLAGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["way", *WAYS, *WAYS]


def every_answer() -> Iterator[Answer]:
    language = Language(str(BUNDLED_MODEL))
    for kind in load_kinds().values():
        form = Form(language, kind)
        yield from (Answer(language, kind, style, form) for style in STYLES)


def test_every_answer_follows_its_grammar_in_each_style() -> None:
    assert [(one.kind, one.style) for one in every_answer() if not one.follows()] == []


def test_schemas_are_those_of_the_values() -> None:
    values = [{"a": 1, "b": ["x"], "c": None}, {"a": 1.5, "b": [], "c": None}]
    schema = derive_schema(values, {"b[]": ["x", "y"], "a": {"minimum": 0}})
    assert schema == {
        "type": "object",
        "properties": {
            "a": {"type": "number", "minimum": 0},
            "b": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
            "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    }


def test_the_path_that_agrees_may_leave_any_branch() -> None:
    tree = [FormDraft(5, -1, 0), FormDraft(6, 0, 1), FormDraft(7, -1, -1), FormDraft(8, 1, -1)]
    for token_ids, path in (([5, 6, 8, 9], [0, 1, 3]), ([7, 6], [2]), ([6], []), ([], [])):
        assert find_path(tree, token_ids) == path
