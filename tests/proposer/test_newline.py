from optimist_proposer.core.newline import newline_token_ids


def test_every_token_with_a_newline_ends_a_line() -> None:
    texts = ["a", "\n", "\n\n", ");\n", "\n    ", "a\nb", "\r", "", "\\n"]
    assert newline_token_ids(texts) == {1, 2, 3, 4, 5}
