"""Edits through all four services, with the bundled model and the official client."""

from openai import OpenAI

from tests.integration.edit import ask, edits


def test_an_edit_with_its_prediction_is_the_same_text_and_mostly_predicted(client: OpenAI) -> None:
    accepted = 0
    num_tokens = 0
    for edit in edits(8):
        plain = ask(client, edit, None)
        predicted = ask(client, edit, edit.before)
        assert predicted.token_ids == plain.token_ids
        assert predicted.text == plain.text
        assert plain.accepted == 0
        accepted += predicted.accepted
        num_tokens += len(predicted.token_ids)
    assert accepted > num_tokens / 2


def test_a_perfect_prediction_takes_few_chunks(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    seen: list[int] = []
    predicted = ask(client, edit, plain.text, on_chunk=seen.append)
    assert predicted.token_ids == plain.token_ids
    # Every pass emits one token of the model's own.
    assert predicted.accepted > len(plain.token_ids) * 0.9
    assert predicted.rejected == 0
    assert len(seen) < len(plain.token_ids) / 4


def test_a_useless_prediction_changes_nothing(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    useless = ask(client, edit, "The quick brown fox\njumps over the lazy dog.\n" * 20)
    assert useless.token_ids == plain.token_ids
    assert useless.accepted == 0


def test_a_prediction_that_goes_wrong_changes_nothing(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    half = plain.text[: len(plain.text) // 2]
    wrong = ask(client, edit, half + "The quick brown fox\njumps over the lazy dog.\n" * 20)
    assert wrong.token_ids == plain.token_ids
    assert wrong.accepted > 0
    assert wrong.rejected > 0


def test_line_endings_of_the_prediction_do_not_matter(client: OpenAI) -> None:
    edit = edits(1)[0]
    unix = ask(client, edit, edit.before)
    windows = ask(client, edit, edit.before.replace("\n", "\r\n"))
    assert windows.token_ids == unix.token_ids
    assert windows.accepted > len(windows.token_ids) / 2


def test_sampled_text_does_not_depend_on_the_prediction(client: OpenAI) -> None:
    edit = edits(1)[0]
    # The model is so sure of an edit that it takes both to leave it a choice.
    options = {"temperature": 2.0, "frequency_penalty": 2.0, "seed": 11, "max_tokens": 120}
    plain = ask(client, edit, None, **options)
    predicted = ask(client, edit, edit.before, **options)
    other_seed = ask(client, edit, edit.before, **options | {"seed": 12})
    assert predicted.token_ids == plain.token_ids
    assert other_seed.token_ids != plain.token_ids


def test_a_stop_string_ends_the_answer_and_its_account(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    stop = plain.text[40:46]
    # Wherever the first window begins to be of use, it runs into what is not said.
    wrong = plain.text[:30] + "not this\n" + edit.before
    stopped, predicted = (ask(client, edit, text, stop=[stop]) for text in (None, wrong))
    assert stopped.text == predicted.text == plain.text[: plain.text.index(stop)]
    assert predicted.token_ids == stopped.token_ids
    assert predicted.accepted > 0
    assert predicted.rejected > 0
