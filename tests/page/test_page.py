"""The page in Chromium before a fake server: every source, every state, every failure."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

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
from tests.stack import wait_until


def open_with_prediction(visit: Visit, server: FakeServer, **context: Any) -> Page:
    page = visit.open(server.url, **context)
    page.get_by_role("textbox", name="You expect").fill(PREDICTION)
    return page


def open_without_prediction(visit: Visit, server: FakeServer, **context: Any) -> Page:
    server.events = list(FROM_PROMPT)
    page = visit.open(server.url, **context)
    page.get_by_role("textbox", name="You ask").fill(PROMPT)
    page.get_by_role("textbox", name="You expect").fill("")
    return page


def open_and_hang(visit: Visit, server: FakeServer) -> Page:
    """Opens the page and runs a request whose answer stops in its middle."""
    server.events = [*EDIT[:2], HANG]
    page = visit.open(server.url)
    page.get_by_role("button", name="Run").click()
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


def test_examples_suit_the_model(visit: Visit, server: FakeServer) -> None:
    server.models.append("tiny-edit")
    page = visit.open(server.url)
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(page.get_by_label("Example")).to_have_value("spelling")
    expect(page.get_by_role("textbox", name="You ask")).to_have_value(re.compile("^Correct the"))
    model = page.get_by_label("Model", exact=True)
    model.select_option("tiny-edit")
    expect(page.get_by_role("textbox", name="You ask")).to_have_value(re.compile("^Rename"))
    page.get_by_role("textbox", name="You ask").fill("My own")
    model.select_option("fake")
    expect(page.get_by_role("textbox", name="You ask")).to_have_value("My own")
    expect(page.get_by_label("Example").locator("option").first).to_have_text("Your own")


def test_of_several_models_one_is_chosen(visit: Visit, server: FakeServer) -> None:
    server.models.append("other")
    page = open_with_prediction(visit, server)
    assert page.get_by_label("Model", exact=True).locator("option").all_text_contents() == [
        "fake",
        "other",
    ]
    run(page)
    page.get_by_label("Model", exact=True).select_option("other")
    expect(page.get_by_role("region", name="The request in curl")).to_contain_text('"other"')
    run(page)
    wait_until(lambda: len(server.requests) == 2, "the second request")
    assert [request["model"] for request in server.requests] == ["fake", "other"]
    assert violations(page) == []
    server.models.pop()
    page.reload()
    expect(page.locator(".server code")).to_have_text("fake")
    expect(page.get_by_label("Model", exact=True)).to_have_count(0)


def test_each_part_of_the_answer_looks_like_its_source(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    run(page)
    assert answer(page) == EDITED
    predicted = [" area(", ", height):\n    return ", "\n"]
    assert parts(page, ".answer-text .source.prediction") == predicted
    assert parts(page, ".answer-text .source.ngram") == ["adth"]
    assert parts(page, ".answer-text .source.drafter") == [" * "]
    assert parts(page, ".answer-text .source.target") == ["def", "breadth", "bre", "height"]
    # Not by colour alone: each has a line of its own.
    assert len(set(looks(page, "prediction", "ngram", "drafter", "target"))) == 4
    legend = page.get_by_role("list", name="Where the answer comes from")
    assert legend.locator("li").count() == 4
    first = page.locator(".answer-text .source.prediction").first
    expect(first).to_have_attribute(
        "title", "pass 2, 2 tokens from the prediction: characters 3 to 9 of the prediction"
    )


def test_an_answer_without_prediction_shows_from_which_part_of_the_prompt_it_came(
    visit: Visit, server: FakeServer
) -> None:
    page = open_without_prediction(visit, server)
    run(page)
    assert answer(page) == EDITED
    assert "prediction" not in server.requests[0]
    copied = [" area(", ", height):\n    return ", " * height\n"]
    assert parts(page, ".answer-text .source.prompt") == copied
    assert parts(page, ".answer-text .source.ngram") == ["adth"]
    assert looks(page, "prompt", "ngram", "target") == ["wavy", "dashed", "dotted"]
    expect(page.locator(".answer-text .source.prompt").first).to_have_attribute(
        "title", "pass 2, 2 tokens from the prompt: characters 15 to 21 of the prompt"
    )
    legend = page.get_by_role("list", name="Where the answer comes from")
    sources = ["prompt", "the request's own text", "the model itself"]
    assert legend.locator("li").all_inner_texts() == sources
    shown = page.get_by_role("region", name="The prompt: 38 characters repeated, 25 not")
    assert shown.text_content() == PROMPT
    assert parts(page, ".followed .part.repeated") == copied
    expect(page.get_by_role("heading", name="The way through the prompt")).to_be_visible()
    way = page.get_by_role("img", name="Of 63 characters of the prompt the answer repeats 38.")
    assert way.locator(".band.repeated").count() == 3
    # Nothing is expected, and nothing is to be compared.
    expect(page.get_by_role("textbox", name="You expect")).to_have_value("")
    expect(page.get_by_role("button", name="Race with and without")).to_be_disabled()


def test_the_prompt_can_be_edited_again(visit: Visit, server: FakeServer) -> None:
    page = open_without_prediction(visit, server)
    page.get_by_role("textbox", name="You ask").focus()
    page.keyboard.press("Control+Shift+Enter")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("region", name="The prompt:")).to_be_focused()
    expect(outcome(page)).to_have_text("complete")
    assert len(server.requests) == 1
    slider = page.get_by_role("slider", name="Passes shown")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.get_by_role("region", name="The prompt: 0 characters repeated")).to_be_visible()
    page.get_by_role("button", name="Edit the prompt").press("Enter")
    expect(page.get_by_role("textbox", name="You ask")).to_be_focused()
    expect(page.get_by_role("textbox", name="You ask")).to_have_value(PROMPT)
    page.get_by_role("button", name="Show what is repeated").click()
    expect(page.get_by_role("region", name="The prompt:")).to_be_visible()


def test_prompt_and_prediction_are_followed_in_one_answer(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    page.get_by_role("textbox", name="You ask").fill(PROMPT)
    server.events = [*EDIT[:2], chunk(repeated(", height", 26)), *EDIT[3:]]
    run(page)
    title = "The way through the prompt and the prediction"
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    assert parts(page, ".followed .part.repeated") == [", height"]
    assert " area(" in parts(page, ".followed .part.used")
    legend = page.get_by_role("list", name="Where the answer comes from")
    assert legend.locator("li").count() == 5
    assert violations(page) == []


def test_an_answer_that_repeats_nothing_leaves_the_prompt_to_be_edited(
    visit: Visit, server: FakeServer
) -> None:
    page = open_without_prediction(visit, server)
    server.events = [chunk(segment("target", "No."), finish_reason="stop")]
    run(page)
    expect(page.get_by_role("textbox", name="You ask")).to_have_value(PROMPT)
    assert page.get_by_role("img", name="of the prompt the answer repeats 0.").count() == 1


def test_the_prediction_shows_what_was_used_and_skipped(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    run(page)
    assert parts(page, ".followed .part.used") == [" area(", ", height):\n    return ", "\n"]
    assert parts(page, ".followed .part.same") == ["def", " * height"]
    assert parts(page, ".followed .part.skipped") == ["width", "width"]
    assert page.locator(".followed .anchor").count() == 2
    expect(page.locator(".followed .anchor").first).to_have_attribute(
        "title", "pass 3: place found again, 5 characters on"
    )
    page.get_by_role("button", name="Edit the text").click()
    expect(page.get_by_role("textbox", name="You expect")).to_have_value(PREDICTION)


def test_focus_stays_with_the_prediction(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".followed")).to_be_focused()
    page.get_by_role("button", name="Edit the text").press("Enter")
    expect(page.get_by_role("textbox", name="You expect")).to_be_focused()
    page.get_by_role("textbox", name="You ask").focus()
    page.keyboard.press("Control+Enter")
    expect(page.locator(".followed")).to_be_visible()
    expect(page.get_by_role("textbox", name="You ask")).to_be_focused()


def test_counters_count_what_was_streamed(visit: Visit, server: FakeServer) -> None:
    speculation = {"num_passes": 6, "num_accepted_tokens": 11}
    server.events = [*EDIT, {"choices": [], "usage": {"speculation": speculation}}]
    page = open_with_prediction(visit, server)
    run(page)
    names = ("Tokens", "Passes", "Tokens a pass", "Accepted drafts")
    assert [counter(page, name) for name in names] == ["17", "6", "2.8", "65 %"]
    for name in ("Time", "First token"):
        assert re.fullmatch(r"[\d.]+ m?s", counter(page, name))
    assert float(counter(page, "Tokens a second")) > 0
    spoken = page.locator("[aria-live=polite]").last
    expect(spoken).to_contain_text("Done: 17 tokens in 6 passes (2.8 a pass), 65 % accepted")


def test_passes_can_be_gone_through_again(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    run(page)
    slider = page.get_by_role("slider", name="Passes shown")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator(".answer-text")).to_have_text("")
    for expected in ("def", "def area(breadth"):
        page.keyboard.press("ArrowRight")
        expect(page.locator(".answer-text")).to_have_text(expected)
    expect(slider).to_have_attribute("aria-valuetext", "2 of 6 passes")
    assert "".join(parts(page, ".followed .part.ahead")) == PREDICTION[9:]
    page.get_by_role("button", name="Replay").click()
    expect(page.locator(".replay output")).to_have_text("pass 6 of 6")
    assert answer(page) == EDITED


def test_the_chart_has_a_table(visit: Visit, server: FakeServer) -> None:
    held_back = {"source": "target", "text": "# end", "num_tokens": 0}
    server.events = [*EDIT, chunk(held_back)]
    page = open_with_prediction(visit, server)
    run(page)
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


def test_a_race_sends_the_same_request_twice(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    page.get_by_role("button", name="Race with and without").click()
    verdict = r"[\d.]+ times as fast with the prediction\. Both answers are identical, character"
    expect(page.locator(".verdict")).to_have_text(re.compile(verdict))
    with_, without = sorted(server.requests, key=lambda body: "prediction" not in body)
    assert with_.pop("prediction") == {"type": "content", "content": PREDICTION}
    assert with_ == without
    assert page.locator(".lane").count() == 2


def test_a_sampled_race_has_one_seed(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url)
    page.get_by_text("Options").click()
    for temperature in ("", "0.8"):
        server.requests.clear()
        page.get_by_label("Temperature").fill(temperature)
        page.get_by_role("button", name="Race with and without").click()
        expect(page.locator(".verdict")).to_contain_text("identical")
        one, other = (body["seed"] for body in server.requests)
        assert one == other
        expect(page.get_by_label("Seed")).to_have_value("")
        # The verdict goes with the race that it is of.
        page.get_by_label("Example").select_option("format")
        expect(page.get_by_text("Both answers are identical")).to_have_count(0)


def test_options_are_part_of_the_request(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server)
    page.get_by_text("Options").click()
    page.get_by_label("Most tokens").fill("12")
    page.get_by_label("Most drafts a pass").fill("0")
    page.get_by_label("Temperature").fill("")
    page.get_by_label("System prompt").fill("Be brief.")
    run(page)
    [body] = server.requests
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["max_completion_tokens"], body["num_speculative_tokens"]) == (12, 0)
    assert "temperature" not in body
    assert '"max_completion_tokens": 12' in page.locator(".snippet pre").inner_text()
    page.get_by_role("button", name="Python").click()
    expect(page.locator(".snippet pre")).to_contain_text("max_completion_tokens=12")


def test_a_seed_that_would_be_changed_is_refused(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url)
    page.get_by_text("Options").click()
    seed = page.get_by_label("Seed")
    for wrong in ("9007199254740993", "-9007199254740993", "1.5"):
        seed.fill(wrong)
        expect(page.get_by_role("alert")).to_contain_text("The seed must be a whole number")
        page.keyboard.press("Control+Enter")
        page.keyboard.press("Control+Shift+Enter")
        seed.fill("-9007199254740991")
        expect(page.get_by_role("alert")).to_have_count(0)
    run(page)
    assert [body["seed"] for body in server.requests] == [-9007199254740991]


def test_the_request_can_be_copied(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the request").click()
    expect(page.get_by_role("button", name="Copied the request")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".snippet pre").text_content()


def test_a_server_that_wants_a_key_is_given_one(visit: Visit, server: FakeServer) -> None:
    visit.allow_failed_requests()
    server.api_key = "right"
    page = visit.open(server.url, wait=False)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Incorrect API key provided.")
    give_key(page, "wrong")
    expect(alert).to_contain_text("invalid_api_key")
    assert violations(page) == []
    give_key(page, "right")
    expect(alert).to_have_count(0)
    run(page)
    assert answer(page) == EDITED
    assert "Bearer $OPTIMIST_API_KEY" in page.locator(".snippet pre").inner_text()
    kept = page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage)]")
    assert kept == [[], ["optimist-api-key"]]


def test_a_key_that_cannot_be_sent_is_asked_for_again(visit: Visit, server: FakeServer) -> None:
    visit.allow_failed_requests()
    server.api_key = "right"
    page = visit.open(server.url, wait=False)
    give_key(page, "right\u2192")
    expect(page.get_by_role("alert")).to_contain_text("This key cannot be sent")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("This key cannot be sent")
    give_key(page, "right")
    expect(page.locator(".server")).to_have_attribute("data-status", "ready")


def test_a_refusal_names_the_field(visit: Visit, server: FakeServer) -> None:
    visit.allow_failed_requests()
    message = "prediction: too long"
    server.refusal = (400, {"message": message, "param": "prediction", "code": "invalid_value"})
    page = visit.open(server.url)
    run(page)
    for text in (message, "field prediction", "status 400", "code invalid_value"):
        expect(page.get_by_role("alert")).to_contain_text(text)
    assert violations(page) == []
    server.refusal = None
    run(page)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_error_in_an_answer_keeps_what_came(visit: Visit, server: FakeServer) -> None:
    server.events = [*EDIT[:2], {"error": {"message": "the worker went away", "code": "error"}}]
    page = visit.open(server.url)
    run(page)
    expect(page.get_by_role("alert")).to_contain_text("the worker went away")
    expect(outcome(page)).to_have_text("broke off")
    assert answer(page) == "def area(breadth"
    assert violations(page) == []


def test_a_running_answer_can_be_stopped(visit: Visit, server: FakeServer) -> None:
    page = open_and_hang(visit, server)
    assert violations(page) == []
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(outcome(page)).to_have_text("stopped")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_answer_that_another_replaced_says_nothing(visit: Visit, server: FakeServer) -> None:
    page = open_and_hang(visit, server)
    server.events = [*EDIT[:1], HANG]
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".answer-text")).to_have_text("def")
    spoken = page.locator("[aria-live=polite]").last
    expect(spoken).to_have_text("The answer streams.")
    page.keyboard.press("Escape")
    expect(spoken).to_contain_text("Stopped after 1 token in 1 pass (1.0 a pass)")
    page.get_by_label("Example").select_option("format")
    expect(spoken).to_have_text("")


def test_of_requests_that_wait_for_the_server_the_last_is_sent(
    visit: Visit, server: FakeServer
) -> None:
    server.may_list.clear()
    page = visit.open(server.url, wait=False)
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("button", name="Stop")).to_be_enabled()
    page.keyboard.press("Control+Enter")
    server.may_list.set()
    expect(outcome(page)).to_have_text("complete")
    assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["Escape", "Stop", "Example"])
def test_a_request_that_waits_for_the_server_can_be_stopped(
    visit: Visit, server: FakeServer, way: str
) -> None:
    server.may_list.clear()
    page = visit.open(server.url, wait=False)
    page.get_by_role("button", name="Run").click()
    if way == "Escape":
        page.keyboard.press("Escape")
    elif way == "Stop":
        page.get_by_role("button", name="Stop").click()
    else:
        page.get_by_label("Example").select_option("format")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    server.may_list.set()
    expect(page.locator(".server")).to_have_attribute("data-status", "ready")
    run(page)
    assert len(server.requests) == 1


def test_a_key_that_is_held_down_runs_once(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url)
    page.keyboard.down("Control")
    page.keyboard.down("Enter")
    page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    page.keyboard.up("Control")
    expect(outcome(page)).to_have_text("complete")
    assert len(server.requests) == 1


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
    page.keyboard.press("Control+Enter")
    expect(outcome(page)).to_have_text("complete")
    server.events = [*EDIT[:2], HANG]
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator(".lane .answer-text").first).to_have_text("def area(breadth")
    page.keyboard.press("Escape")
    expect(page.locator(".verdict")).to_have_text("The race did not finish.")


# Colours and widths do not depend on each other, but for what is shown at all.
@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1440), ("dark", 900), ("light", 360), ("dark", 360)]
)
def test_every_state_is_accessible(
    visit: Visit, server: FakeServer, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    page = open_without_prediction(visit, server, viewport=size, color_scheme=scheme)
    assert violations(page) == []
    run(page)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    server.events = list(EDIT)
    page = open_with_prediction(visit, server, viewport=size, color_scheme=scheme)
    assert violations(page) == []
    page.get_by_text("Options").click()
    page.get_by_role("button", name="Race with and without").click()
    expect(page.locator(".verdict")).to_contain_text("identical")
    page.get_by_text("As a table").click()
    assert violations(page) == []
    # Nothing sticks out.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    columns = page.locator(".triptych").evaluate(
        "element => getComputedStyle(element).gridTemplateColumns.split(' ').length"
    )
    assert columns == {1440: 3, 900: 2, 360: 1}[width]


def test_a_chosen_theme_stays(visit: Visit, server: FakeServer) -> None:
    page = visit.open(server.url, color_scheme="light")
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


def test_a_browser_that_keeps_nothing_shows_the_page(visit: Visit, server: FakeServer) -> None:
    server.api_key = "right"
    visit.allow_failed_requests()
    page = visit.open(server.url, wait=False)
    page.add_init_script(
        "for (const area of ['localStorage', 'sessionStorage']) Object.defineProperty(window, area,"
        "{ get() { throw new DOMException('blocked', 'SecurityError'); } });"
    )
    page.reload()
    give_key(page, "right")
    page.get_by_label("Theme").select_option("dark")
    run(page)
    assert answer(page) == EDITED
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_nothing_moves_for_those_who_do_not_want_it(visit: Visit, server: FakeServer) -> None:
    page = open_with_prediction(visit, server, reduced_motion="reduce")
    run(page)
    moving = page.evaluate("document.getAnimations().length")
    still = page.locator(".runner").evaluate("it => getComputedStyle(it).transitionDuration")
    assert (moving, still) == (0, "0s")


def test_text_of_the_model_is_never_markup(visit: Visit, server: FakeServer) -> None:
    text = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
    server.events = [chunk(segment("target", text), finish_reason="stop")]
    page = visit.open(server.url)
    run(page)
    assert answer(page) == text


def test_the_cursor_stays_in_view(visit: Visit, server: FakeServer) -> None:
    lines = [f"line {number}\n" for number in range(300)]
    places = [(sum(map(len, lines[:at])), sum(map(len, lines[: at + 50]))) for at in (0, 50, 100)]
    text = "".join(lines)
    server.events = [
        chunk(segment("prediction", text[start:end], (start, end))) for start, end in places
    ]
    page = visit.open(server.url)
    page.get_by_role("textbox", name="You expect").fill(text)
    run(page)
    sheet, cursor = page.locator(".followed").bounding_box(), page.locator(".followed .cursor")
    box = cursor.bounding_box()
    assert sheet is not None
    assert box is not None
    assert sheet["y"] <= box["y"] <= sheet["y"] + sheet["height"]
    assert page.evaluate("scrollY") == 0


def test_on_a_narrow_screen_the_answer_is_shown_when_it_begins(
    visit: Visit, server: FakeServer
) -> None:
    page = open_with_prediction(visit, server, viewport={"width": 390, "height": 844})
    button = page.get_by_role("button", name="Run")
    expect(page.get_by_role("heading", name="It answers")).not_to_be_in_viewport()
    page.evaluate("scrollTo(0, 300)")
    expect(button).to_be_in_viewport(ratio=1)
    # Below the buttons nothing is seen.
    run(page)
    expect(page.locator(".answer-text")).to_be_in_viewport(ratio=1)
    sheet, buttons = page.locator(".answer-text").bounding_box(), button.bounding_box()
    assert sheet is not None
    assert buttons is not None
    assert sheet["y"] + sheet["height"] <= buttons["y"]
    # Whoever looks at something else is not brought back by the end of the answer.
    server.events = [*EDIT[:2], HANG]
    button.click()
    expect(page.locator(".answer-text")).to_have_text("def area(breadth")
    page.evaluate("scrollTo(0, 0)")
    page.get_by_role("button", name="Stop").click()
    expect(outcome(page)).to_have_text("stopped")
    assert page.evaluate("scrollY") == 0
