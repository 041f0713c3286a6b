"""The page in Chromium before a fake server: every source, every state, every failure.

By keyboard and by mouse, on wide and on narrow screens, and for axe nothing is inaccessible.
"""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.fake_server import (
    EDIT,
    EDITED,
    FROM_PROMPT,
    HANG,
    PREDICTION,
    PROMPT,
    FakeServer,
    chunk,
    repeated,
    segment,
)
from tests.page.visit import Visit, answer, counter, outcome, run, violations


def asked(page: Page) -> Locator:
    return page.get_by_role("textbox", name="You ask")


def expected(page: Page) -> Locator:
    return page.get_by_role("textbox", name="You expect")


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()


def open_with_prediction(visit: Visit, server: FakeServer, **context: Any) -> Page:
    page = visit.open(server.url, **context)
    expected(page).fill(PREDICTION)
    return page


def open_without_prediction(visit: Visit, server: FakeServer, **context: Any) -> Page:
    server.events = list(FROM_PROMPT)
    page = visit.open(server.url, **context)
    asked(page).fill(PROMPT)
    expected(page).fill("")
    return page


def open_and_hang(visit: Visit, server: FakeServer) -> Page:
    """Opens the page and runs a request whose answer stops in its middle."""
    server.events = [*EDIT[:2], HANG]
    page = visit.open(server.url)
    press(page, "Run")
    expect(page.locator(".answer-text")).to_have_text("def area(breadth")
    return page


def give_key(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")


def parts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def looks(page: Page, *sources: str) -> list[str]:
    """Returns the lines under what comes from some sources."""
    style = "element => getComputedStyle(element).textDecorationStyle"
    texts = (page.locator(f".answer-text .source.{name}").first for name in sources)
    return [text.evaluate(style) for text in texts]


def sources(page: Page) -> list[str]:
    legend = page.get_by_role("list", name="Where the answer comes from")
    return legend.locator("li").all_inner_texts()


def test_of_several_models_one_is_chosen_and_examples_suit_it(
    visit: Visit, server: FakeServer
) -> None:
    server.models.append("tiny-edit")
    page = visit.open(server.url)
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(page.get_by_label("Example")).to_have_value("spelling")
    expect(asked(page)).to_have_value(re.compile("^Correct the"))
    model = page.get_by_label("Model", exact=True)
    model.select_option("tiny-edit")
    expect(asked(page)).to_have_value(re.compile("^Rename"))
    expect(page.get_by_role("region", name="The request in curl")).to_contain_text('"tiny-edit"')
    run(page)
    asked(page).fill("My own")
    model.select_option("fake")
    expect(asked(page)).to_have_value("My own")
    run(page)
    assert [request["model"] for request in server.requests] == ["tiny-edit", "fake"]
    expect(page.get_by_label("Example").locator("option").first).to_have_text("Your own")
    server.models.pop()
    page.reload()
    expect(page.locator(".server code")).to_have_text("fake")
    expect(model).to_have_count(0)


def test_an_edit_shows_its_sources_its_way_through_the_prediction_and_its_passes(
    visit: Visit, server: FakeServer
) -> None:
    held_back = {"source": "target", "text": "# end", "num_tokens": 0}
    speculation = {"num_passes": 6, "num_accepted_tokens": 11}
    usage = {"choices": [], "usage": {"speculation": speculation}}
    server.events = [*EDIT, chunk(held_back), usage]
    page = open_with_prediction(visit, server)
    run(page)
    assert answer(page) == EDITED + "# end"
    predicted = [" area(", ", height):\n    return ", "\n"]
    assert parts(page, ".answer-text .source.prediction") == predicted
    assert parts(page, ".answer-text .source.ngram") == ["adth"]
    assert parts(page, ".answer-text .source.drafter") == [" * "]
    assert parts(page, ".answer-text .source.target") == [
        "def",
        "breadth",
        "bre",
        "height",
        "# end",
    ]
    # Not by colour alone: each has a line of its own.
    assert len(set(looks(page, "prediction", "ngram", "drafter", "target"))) == 4
    assert len(sources(page)) == 4
    expect(page.locator(".answer-text .source.prediction").first).to_have_attribute(
        "title", "pass 2, 2 tokens from the prediction: characters 3 to 9 of the prediction"
    )

    assert parts(page, ".followed .part.used") == predicted
    assert parts(page, ".followed .part.same") == ["def", " * height"]
    assert parts(page, ".followed .part.skipped") == ["width", "width"]
    anchors = page.locator(".followed .anchor")
    assert anchors.count() == 2
    expect(anchors.first).to_have_attribute("title", "pass 3: place found again, 5 characters on")

    names = ("Tokens", "Passes", "Tokens a pass", "Accepted drafts")
    assert [counter(page, name) for name in names] == ["17", "6", "2.8", "65 %"]
    for name in ("Time", "First token"):
        assert re.fullmatch(r"[\d.]+ m?s", counter(page, name))
    assert float(counter(page, "Tokens a second")) > 0
    spoken = page.locator("[aria-live=polite]").last
    expect(spoken).to_contain_text("Done: 17 tokens in 6 passes (2.8 a pass), 65 % accepted")

    chart = page.get_by_role("img", name="6 passes; at most 6 accepted drafts in one")
    pixels = chart.locator("canvas").evaluate(
        "canvas => new Set(new Uint32Array("
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"
    )
    assert pixels > 10
    table = page.locator(".passes tbody tr")
    # Rows cost time at every pass, seen or not.
    expect(table).to_have_count(0)
    page.get_by_text("As a table").click()
    expect(table).to_have_count(6)
    rows = table.all_inner_texts()
    assert [row.split("\t")[:3] for row in rows][1:3] == [["2", "4", "2"], ["3", "7", "6"]]
    assert rows[3].split("\t")[3:] == ["from the request's own text", "adth"]
    assert rows[5].split("\t")[4] == "\\n# end"

    slider = page.get_by_role("slider", name="Passes shown")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator(".answer-text")).to_have_text("")
    for text in ("def", "def area(breadth"):
        page.keyboard.press("ArrowRight")
        expect(page.locator(".answer-text")).to_have_text(text)
    expect(slider).to_have_attribute("aria-valuetext", "2 of 6 passes")
    assert "".join(parts(page, ".followed .part.ahead")) == PREDICTION[9:]
    press(page, "Replay")
    expect(page.locator(".replay output")).to_have_text("pass 6 of 6")
    assert answer(page) == EDITED + "# end"
    press(page, "Edit the text")
    expect(expected(page)).to_have_value(PREDICTION)


def test_without_a_prediction_the_prompt_is_followed(visit: Visit, server: FakeServer) -> None:
    page = open_without_prediction(visit, server)
    asked(page).focus()
    # There is nothing to race with.
    page.keyboard.press("Control+Shift+Enter")
    expect(page.get_by_role("button", name="Race with and without")).to_be_disabled()
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("region", name="The prompt:")).to_be_focused()
    expect(outcome(page)).to_have_text("complete")
    assert answer(page) == EDITED
    assert ["prediction" in request for request in server.requests] == [False]
    copied = [" area(", ", height):\n    return ", " * height\n"]
    assert parts(page, ".answer-text .source.prompt") == copied
    assert looks(page, "prompt", "ngram", "target") == ["wavy", "dashed", "dotted"]
    expect(page.locator(".answer-text .source.prompt").first).to_have_attribute(
        "title", "pass 2, 2 tokens from the prompt: characters 15 to 21 of the prompt"
    )
    assert sources(page) == ["prompt", "the request's own text", "the model itself"]
    shown = page.get_by_role("region", name="The prompt: 38 characters repeated, 25 not")
    assert shown.text_content() == PROMPT
    assert parts(page, ".followed .part.repeated") == copied
    expect(page.get_by_role("heading", name="The way through the prompt")).to_be_visible()
    way = page.get_by_role("img", name="Of 63 characters of the prompt the answer repeats 38.")
    assert way.locator(".band.repeated").count() == 3
    # It can be gone through again, and edited.
    page.get_by_role("slider", name="Passes shown").focus()
    page.keyboard.press("Home")
    expect(page.get_by_role("region", name="The prompt: 0 characters repeated")).to_be_visible()
    page.get_by_role("button", name="Edit the prompt").press("Enter")
    expect(asked(page)).to_be_focused()
    expect(asked(page)).to_have_value(PROMPT)
    press(page, "Show what is repeated")
    expect(page.get_by_role("region", name="The prompt:")).to_be_visible()
    # An answer that repeats nothing leaves it to be edited.
    server.events = [chunk(segment("target", "No."), finish_reason="stop")]
    run(page)
    expect(asked(page)).to_have_value(PROMPT)
    assert page.get_by_role("img", name="of the prompt the answer repeats 0.").count() == 1


def test_a_race_sends_the_same_request_twice(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    page.get_by_text("Options").click()
    verdict = r"[\d.]+ times as fast with the prediction\. Both answers are identical, character"
    for temperature in ("", "0.8"):
        server.requests.clear()
        page.get_by_label("Temperature").fill(temperature)
        press(page, "Race with and without")
        expect(page.locator(".verdict")).to_have_text(re.compile(verdict))
        with_, without = sorted(server.requests, key=lambda body: "prediction" not in body)
        # Sampled answers have one seed.
        assert "seed" in with_
        content = with_.pop("prediction")["content"]
        assert temperature or content == PREDICTION
        assert with_ == without
        expect(page.get_by_label("Seed")).to_have_value("")
        assert page.locator(".lane").count() == 2
        # The verdict goes with the race that it is of.
        page.get_by_label("Example").select_option("format")
        expect(page.locator(".verdict")).to_have_count(0)


def test_options_are_part_of_the_request(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_text("Options").click()
    page.get_by_label("Most tokens").fill("12")
    page.get_by_label("Most drafts a pass").fill("0")
    page.get_by_label("Temperature").fill("")
    page.get_by_label("System prompt").fill("Be brief.")
    seed = page.get_by_label("Seed")
    for wrong in ("9007199254740993", "1.5"):
        # Numbers that JavaScript would change are refused.
        seed.fill(wrong)
        expect(page.get_by_role("alert")).to_contain_text("The seed must be a whole number")
        page.keyboard.press("Control+Enter")
        page.keyboard.press("Control+Shift+Enter")
        seed.fill("-9007199254740991")
        expect(page.get_by_role("alert")).to_have_count(0)
    run(page)
    [body] = server.requests
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["max_completion_tokens"], body["num_speculative_tokens"]) == (12, 0)
    assert body["seed"] == -9007199254740991
    assert "temperature" not in body
    snippet = page.locator(".snippet pre")
    assert '"max_completion_tokens": 12' in snippet.inner_text()
    press(page, "Python")
    expect(snippet).to_contain_text("max_completion_tokens=12")
    press(page, "Copy the request")
    expect(page.get_by_role("button", name="Copied the request")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == snippet.text_content()


def test_a_server_that_wants_a_key_is_given_one(visit: Visit, server: FakeServer) -> None:
    visit.allow_failed_requests()
    server.api_key = "right"
    page = visit.open(server.url, wait=False)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Incorrect API key provided.")
    give_key(page, "wrong")
    expect(alert).to_contain_text("invalid_api_key")
    assert violations(page) == []
    give_key(page, "right\u2192")
    expect(alert).to_contain_text("This key cannot be sent")
    page.reload()
    expect(alert).to_contain_text("This key cannot be sent")
    give_key(page, "right")
    expect(alert).to_have_count(0)
    run(page)
    assert answer(page) == EDITED
    assert "Bearer $OPTIMIST_API_KEY" in page.locator(".snippet pre").inner_text()
    kept = page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage)]")
    assert kept == [[], ["optimist-api-key"]]


def test_what_goes_wrong_is_said(visit: Visit, server: FakeServer) -> None:
    visit.allow_failed_requests()
    message = "prediction: too long"
    server.refusal = (400, {"message": message, "param": "prediction", "code": "invalid_value"})
    page = visit.open(server.url)
    alert = page.get_by_role("alert")
    run(page)
    for text in (message, "field prediction", "status 400", "code invalid_value"):
        expect(alert).to_contain_text(text)
    assert violations(page) == []
    # An error within an answer keeps what came.
    server.refusal = None
    server.events = [*EDIT[:2], {"error": {"message": "the worker went away", "code": "error"}}]
    run(page)
    expect(alert).to_contain_text("the worker went away")
    expect(outcome(page)).to_have_text("broke off")
    assert answer(page) == "def area(breadth"
    # Text of the model is never markup.
    text = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
    server.events = [chunk(segment("target", text), finish_reason="stop")]
    run(page)
    expect(alert).to_have_count(0)
    assert answer(page) == text
    page.route("**/v1/**", lambda route: route.abort())
    page.reload()
    expect(alert).to_contain_text("The server does not answer")
    expect(page.locator(".server")).to_have_attribute("data-status", "unreachable")
    page.unroute("**/v1/**")
    press(page, "Try again")
    expect(alert).to_have_count(0)
    expect(page.locator(".server")).to_have_attribute("data-status", "ready")


def test_a_running_answer_can_be_stopped_or_replaced(visit: Visit, server: FakeServer) -> None:
    page = open_and_hang(visit, server)
    assert violations(page) == []
    press(page, "Stop")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(outcome(page)).to_have_text("stopped")
    expect(page.get_by_role("alert")).to_have_count(0)
    press(page, "Run")
    expect(page.locator(".answer-text")).to_have_text("def area(breadth")
    server.events = [*EDIT[:1], HANG]
    press(page, "Run")
    expect(page.locator(".answer-text")).to_have_text("def")
    # Of the one that was replaced nothing is said.
    spoken = page.locator("[aria-live=polite]").last
    expect(spoken).to_have_text("The answer streams.")
    page.keyboard.press("Escape")
    expect(spoken).to_contain_text("Stopped after 1 token in 1 pass (1.0 a pass)")
    page.get_by_label("Example").select_option("format")
    expect(spoken).to_have_text("")


def test_everything_works_by_keyboard(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the request")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "() => { const it = document.activeElement; const style = getComputedStyle(it);"
            "return [it.id || it.textContent.trim().slice(0, 4), style.outlineStyle]; }"
        )
        seen.append(focused[0])
        assert focused[1] != "none", f"no visible focus on {focused[0]}"
        if focused[0] == "prompt":
            break
    assert "Run" in [name.strip() for name in seen]
    # A key that is held down runs once.
    page.keyboard.down("Control")
    page.keyboard.down("Enter")
    page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    page.keyboard.up("Control")
    expect(outcome(page)).to_have_text("complete")
    assert len(server.requests) == 1
    # Focus stays with what was edited.
    expect(asked(page)).to_be_focused()
    page.get_by_role("button", name="Edit the text").press("Enter")
    expect(expected(page)).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(page.locator(".followed")).to_be_focused()
    expect(outcome(page)).to_have_text("complete")
    server.events = [*EDIT[:2], HANG]
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator(".lane .answer-text").first).to_have_text("def area(breadth")
    page.keyboard.press("Escape")
    expect(page.locator(".verdict")).to_have_text("The race did not finish.")


# Colours and widths do not depend on each other, but for what is shown at all.
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 360)])
def test_every_state_is_accessible(
    visit: Visit, server: FakeServer, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    page = open_without_prediction(visit, server, viewport=size, color_scheme=scheme)
    assert violations(page) == []
    run(page)
    assert violations(page) == []
    server.events = list(EDIT)
    press(page, "Edit the prompt")
    expected(page).fill(PREDICTION)
    page.get_by_text("Options").click()
    press(page, "Race with and without")
    expect(page.locator(".verdict")).to_contain_text("identical")
    page.get_by_text("As a table").click()
    assert violations(page) == []
    # Nothing sticks out.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    columns = "element => getComputedStyle(element).gridTemplateColumns.split(' ').length"
    for wide, count in ((width, {1440: 3, 360: 1}[width]), (900, 2)):
        page.set_viewport_size({"width": wide, "height": 800})
        assert page.locator(".triptych").evaluate(columns) == count
    page.set_viewport_size(size)  # type: ignore[arg-type]
    page.get_by_role("link", name="Chat").click()
    ask(page, "unbroken" * 100)
    server.events = [*FROM_CHAT, HANG]
    message(page).fill("And now?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn .answer-text").last).to_contain_text("!")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("Escape")


def test_a_chosen_theme_stays_and_nothing_moves_for_those_who_do_not_want_it(
    visit: Visit, server: FakeServer
) -> None:
    page = visit.open(server.url, color_scheme="light", reduced_motion="reduce")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(paper)
    assert dark != light
    page.reload()
    expect(page.locator(".server")).to_have_attribute("data-status", "ready")
    assert page.evaluate(paper) == dark
    page.get_by_label("Theme").select_option("system")
    assert page.evaluate(paper) == light
    run(page)
    moving = page.evaluate("document.getAnimations().length")
    still = page.locator(".runner").evaluate("it => getComputedStyle(it).transitionDuration")
    assert (moving, still) == (0, "0s")


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
    return parts(page, ".turn .answer-text")


def test_a_chat_of_several_turns(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url)
    asked(page).fill("My own")
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
    assert any("drafter" in each for each in sources(page))
    expect(page.locator("[aria-live=polite]").last).to_contain_text("def area(And!\nDone: 5 tokens")
    # The edit stays while the chat is shown, and the other way round.
    page.go_back()
    expect(asked(page)).to_have_value("My own")
    expect(page.locator(".outcome")).to_have_count(0)
    page.get_by_role("link", name="Chat").click()
    assert answers(page) == [EDITED, "def area(And!"]
    press(page, "New chat")
    expect(page.locator(".turn")).to_have_count(0)
    # Thoughts are shown, but are no part of the chat.
    thought = chunk(segment("target", "<think>Italy</think>"))
    thought["choices"][0]["delta"] = {"reasoning_content": "Italy"}
    server.events = [thought, *SAYS_ROME]
    ask(page, "The capital of Italy?")
    assert answers(page) == ["<think>Italy</think>Rome."]
    ask(page, "Sure?")
    assert server.requests[-1]["messages"][1:-1] == [
        {"role": "user", "content": "The capital of Italy?"},
        {"role": "assistant", "content": "Rome."},
    ]


def test_a_chat_by_keyboard_is_stopped_and_asked_again(visit: Visit, server: FakeServer) -> None:
    server.events = [*EDIT[:2], HANG]
    page = visit.open(server.url + CHAT)
    message(page).focus()
    page.keyboard.press("Enter")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(message(page)).to_have_value("one\ntwo")
    for way in ("Escape", "Stop"):
        page.keyboard.press("Control+Enter")
        expect(page.locator(".turn .answer-text").last).to_have_text("def area(breadth")
        if way == "Escape":
            page.keyboard.press("Escape")
        else:
            press(page, "Stop")
        expect(page.locator(".turn .outcome").last).to_contain_text("stopped")
        message(page).fill("Rename it.")
    assert server.requests[0]["messages"][-1]["content"] == "one\ntwo"
    assert server.requests[1]["messages"][1]["content"] == "def area(breadth"
    server.events = SAYS_ROME
    press(page, "Ask again")
    expect(page.locator(".turn .answer-text").last).to_have_text("Rome.")
    assert answers(page) == ["def area(breadth", "Rome."]
    assert server.requests[2] == server.requests[1]
    expect(page.get_by_role("button", name="Ask again")).to_have_count(0)


def test_a_question_waits_for_the_key_and_a_refusal_stands_where_the_answer_would(
    visit: Visit, server: FakeServer
) -> None:
    visit.allow_failed_requests()
    server.api_key = "right"
    page = visit.open(server.url + CHAT, wait=False)
    message(page).fill("Rename it.")
    page.keyboard.press("Enter")
    give_key(page, "right")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(message(page)).to_have_value("Rename it.")
    server.refusal = (400, {"message": "too long", "param": "messages", "code": "invalid_value"})
    ask(page, "Rename it.")
    expect(page.locator(".turn").get_by_role("alert")).to_contain_text("too long")
    assert violations(page) == []
    server.refusal, server.events = None, SAYS_ROME
    ask(page, "The capital of Italy?")
    # What has no answer is not sent again.
    sent = [each["content"] for each in server.requests[-1]["messages"]]
    assert sent == ["The capital of Italy?"]
