"""The page's chat in Chromium before a fake server."""

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.fake_server import (
    EDIT,
    EDITED,
    HANG,
    FakeServer,
    chunk,
    repeated,
    segment,
)
from tests.page.visit import Visit, violations
from tests.stack import wait_until

CHAT = "#chat"
SAYS_ROME = [chunk(segment("target", "Rome."), finish_reason="stop")]
FROM_CHAT = [
    chunk(segment("target", "def")),
    chunk(repeated(" area(", 3, message=1), repeated("And", 0, message=2)),
    chunk(segment("ngram", "!"), finish_reason="stop"),
]


def message(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def ask(page: Page, question: str) -> None:
    """Asks and waits for the end of the answer."""
    number = page.locator(".turn").count()
    message(page).fill(question)
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(number + 1)
    expect(page.locator(".turn .outcome").last).not_to_contain_text("streams")


def answers(page: Page) -> list[str]:
    return page.locator(".turn .answer-text").all_text_contents()


def end_of_page(page: Page) -> float:
    """Returns how many pixels are below what is seen."""
    script = "(it => it.scrollHeight - it.scrollTop - it.clientHeight)(document.documentElement)"
    return float(page.evaluate(script))


def test_a_chat_of_several_turns(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url)
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_text("nothing need be attached as a prediction")).to_be_visible()
    page.get_by_text("Options").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    ask(page, "Rename it.")
    server.events = FROM_CHAT
    ask(page, "And now?")
    expect(message(page)).to_have_value("")
    assert answers(page) == [EDITED, "def area(And!"]
    first, second = server.requests
    assert second["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rename it."},
        {"role": "assistant", "content": EDITED},
        {"role": "user", "content": "And now?"},
    ]
    assert (second["temperature"], "prediction" in second) == (0.5, False)
    assert first["messages"] == second["messages"][:2]
    titles = [
        "pass 2, 2 tokens from the prompt: characters 3 to 9 of message 2",
        "pass 2, 1 token from the prompt: characters 0 to 3 of message 3",
    ]
    shown = page.locator(".turn").last.locator(".source.prompt")
    assert [part.get_attribute("title") for part in shown.all()] == titles
    figures = page.locator(".turn .outcome").last
    expect(figures).to_contain_text("complete: 5 tokens in 3 passes (1.7 a pass), 80 % accepted")
    expect(page.get_by_role("list", name="Where the answer comes from")).to_contain_text("drafter")
    expect(page.locator("[aria-live=polite]").last).to_contain_text("def area(And!\nDone: 5 tokens")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, "Rename it.")
    assert len(server.requests[2]["messages"]) == 2


def test_thoughts_are_shown_but_are_no_part_of_the_chat(visit: Visit, server: FakeServer) -> None:
    thought = chunk(segment("target", "<think>Italy</think>"))
    thought["choices"][0]["delta"] = {"reasoning_content": "Italy"}
    server.events = [thought, *SAYS_ROME]
    page = visit.open(server.url + CHAT)
    ask(page, "The capital of Italy?")
    assert answers(page) == ["<think>Italy</think>Rome."]
    ask(page, "Sure?")
    assert server.requests[1]["messages"][1] == {"role": "assistant", "content": "Rome."}


def test_enter_sends_and_shift_enter_begins_a_line(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url + CHAT)
    message(page).focus()
    page.keyboard.press("Enter")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(message(page)).to_have_value("one\ntwo")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".turn .outcome")).to_contain_text("complete")
    assert [request["messages"][-1]["content"] for request in server.requests] == ["one\ntwo"]
    expect(message(page)).to_be_focused()


def test_what_was_stopped_goes_on_or_is_asked_again(visit: Visit, server: FakeServer) -> None:
    server.events = [*EDIT[:2], HANG]
    page = visit.open(server.url + CHAT)
    for way in ("Escape", "Stop"):
        message(page).fill("Rename it.")
        page.keyboard.press("Enter")
        expect(page.locator(".turn .answer-text").last).to_have_text("def area(breadth")
        if way == "Escape":
            page.keyboard.press("Escape")
        else:
            page.get_by_role("button", name="Stop").click()
        expect(page.locator(".turn .outcome").last).to_contain_text("stopped")
    assert server.requests[1]["messages"][1]["content"] == "def area(breadth"
    server.events = SAYS_ROME
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".turn .answer-text").last).to_have_text("Rome.")
    assert answers(page) == ["def area(breadth", "Rome."]
    assert server.requests[2] == server.requests[1]
    expect(page.get_by_role("button", name="Ask again")).to_have_count(0)


def test_a_refusal_stands_where_the_answer_would(visit: Visit, server: FakeServer) -> None:
    visit.allow_failed_requests()
    server.refusal = (400, {"message": "too long", "param": "messages", "code": "invalid_value"})
    page = visit.open(server.url + CHAT)
    ask(page, "Rename it.")
    expect(page.locator(".turn").get_by_role("alert")).to_contain_text("too long")
    assert violations(page) == []
    server.refusal, server.events = None, SAYS_ROME
    ask(page, "The capital of Italy?")
    # What has no answer is not sent again.
    assert [each["content"] for each in server.requests[1]["messages"]] == ["The capital of Italy?"]


def test_a_question_waits_for_the_key(visit: Visit, server: FakeServer) -> None:
    visit.allow_failed_requests()
    server.api_key = "right"
    page = visit.open(server.url + CHAT, wait=False)
    message(page).fill("Rename it.")
    page.keyboard.press("Enter")
    page.get_by_label("API key").fill("right")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(message(page)).to_have_value("Rename it.")
    message(page).press("Enter")
    expect(page.locator(".turn .outcome")).to_contain_text("complete")


def test_examples_can_be_asked_one_after_the_other(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url + CHAT)
    message(page).fill("My own")
    examples = page.get_by_role("group", name="Examples").get_by_role("button")
    count = examples.count()
    assert count > 1
    examples.first.click()
    expect(examples).to_have_count(1)
    examples.first.click()
    wait_until(lambda: len(server.requests) == 2, "the second question")
    # What was being written stays.
    expect(message(page)).to_have_value("My own")
    page.get_by_role("button", name="New chat").click()
    expect(examples).to_have_count(count)


def test_the_edit_stays_while_the_chat_is_shown(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url)
    page.get_by_role("textbox", name="You ask").fill("My own")
    page.get_by_role("link", name="Chat").click()
    ask(page, "Rename it.")
    page.keyboard.press("Control+Enter")
    page.go_back()
    expect(page.get_by_role("textbox", name="You ask")).to_have_value("My own")
    expect(page.locator(".outcome")).to_have_count(0)
    page.get_by_role("link", name="Skip to the request").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="You ask")).to_be_visible()
    page.get_by_role("link", name="Chat").click()
    assert answers(page) == [EDITED]


def test_the_end_of_a_chat_is_followed_unless_one_reads_above(
    visit: Visit, server: FakeServer
) -> None:
    lines = [chunk(segment("target", f"line {number}\n")) for number in range(60)]
    server.events = lines
    page = visit.open(server.url + CHAT, viewport={"width": 390, "height": 844})
    ask(page, "Many lines.")
    assert end_of_page(page) < 2
    server.events = [*lines, HANG]
    message(page).fill("Again.")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(2)
    last = page.locator(".turn .answer-text").last
    expect(last).to_contain_text("line 1")
    page.evaluate("scrollTo(0, 100)")
    expect(last).to_contain_text("line 59")
    assert page.evaluate("scrollY") == 100
    # What is asked next can be reached from everywhere.
    for button in ("Send", "Stop"):
        expect(page.get_by_role("button", name=button)).to_be_in_viewport(ratio=1)
    page.keyboard.press("Escape")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390), ("light", 360)])
def test_every_state_is_accessible(
    visit: Visit, server: FakeServer, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    page = visit.open(server.url + CHAT, viewport=size, color_scheme=scheme)
    assert violations(page) == []
    ask(page, "unbroken" * 100)
    server.events = [*FROM_CHAT, HANG]
    page.get_by_text("Options").click()
    message(page).fill("And now?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn .answer-text").last).to_contain_text("!")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("Escape")
