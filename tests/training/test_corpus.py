import ast

from optimist_training.data.corpus import MAX_LINES, MIN_LINES, snippets, split_of


def test_a_snippet_is_one_definition_of_the_documented_size() -> None:
    for snippet in snippets("unseen")[:200]:
        assert MIN_LINES <= snippet.code.count("\n") + 1 <= MAX_LINES
        assert len(ast.parse(snippet.code).body) == 1


def test_no_file_is_in_both_splits() -> None:
    train = {snippet.path for snippet in snippets("train")}
    unseen = {snippet.path for snippet in snippets("unseen")}

    assert train
    assert unseen
    assert not train & unseen


def test_no_unseen_code_stands_in_a_training_file_too() -> None:
    train = {snippet.code for snippet in snippets("train")}

    assert not [snippet for snippet in snippets("unseen") if snippet.code in train]


def test_the_split_of_a_file_depends_on_nothing_but_its_path() -> None:
    assert split_of("json/decoder.py") == split_of("json/decoder.py")
    paths = [f"package/module_{number}.py" for number in range(1000)]
    share = sum(split_of(path) == "unseen" for path in paths) / len(paths)
    assert 0.05 < share < 0.15
