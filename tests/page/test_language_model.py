"""The page's examples for language models, as a small one answers them: `make smollm2` makes it."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.page.visit import Visit, answer, ask_all_examples
from tests.stack import REPOSITORY, Stack

SMOLLM2 = REPOSITORY / "models" / "smollm2"
pytestmark = pytest.mark.skipif(not SMOLLM2.exists(), reason="`make smollm2` was not run")

MINUTES = (
    "The committee meets on the first Monday of every month in the town hall. Members receive the "
    "agenda one week before the meeting. Visitors may speak for three minutes each. The minutes "
    "are published on the website within ten days, together with the list of decisions. Anyone who "
    "wants to correct them writes to the secretary before the next meeting."
)
PERSON = """{
  "name": "Anna Berg",
  "age": 30,
  "city": "Berlin",
  "email": "anna@example.org",
  "languages": ["German", "English"]
}"""
OLDER = PERSON.replace("30", "31")
EDITS = {
    "spelling": MINUTES,
    "nothing-expected": MINUTES,
    "format": PERSON,
    "outdated-json": PERSON,
    "simplify": "def mean(values):\n    return sum(values) / len(values)",
}
FUNCTION = """```python
def {0}(x):
    return x ** {1}
```

This function uses the {2}`**` operator to calculate the {0} of a number."""
CHATS = [
    [PERSON, OLDER, OLDER.replace("Berlin", "Munich")],
    [
        "The capital of France is Paris.",
        "The capital of Italy is Rome.",
        "The capital of Spain is Madrid.",
    ],
    [FUNCTION.format("square", 2, "built-in "), FUNCTION.format("cube", 3, "")],
]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Stack]:
    running = Stack(model=str(SMOLLM2))
    yield running
    running.stop()


def test_the_examples_are_answered_rightly(visit: Visit, smollm2: Stack) -> None:
    page = visit.open(smollm2.url)
    example = page.get_by_label("Example")
    values = example.locator("option").evaluate_all("all => all.map(option => option.value)")
    assert values == list(EDITS)
    expect(example).to_have_value("spelling")
    for name, expected in EDITS.items():
        example.select_option(name)
        page.get_by_role("button", name="Run").click()
        expect(page.locator(".outcome")).to_have_text("complete")
        assert answer(page) == expected


def test_the_examples_of_the_chat_are_answered_rightly(visit: Visit, smollm2: Stack) -> None:
    page = visit.open(f"{smollm2.url}#chat")
    answers = [[text for _, text in chat] for chat in ask_all_examples(page)]
    assert answers == CHATS
