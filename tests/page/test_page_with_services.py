"""The page in Chromium before running services with the bundled model."""

import re
import sys
from urllib.parse import urlsplit

from playwright.sync_api import Page, expect

from tests.command import run as run_command
from tests.page.visit import (
    Visit,
    answer,
    ask_all_examples,
    counter,
    outcome,
    run,
    violations,
)
from tests.stack import ENGINE_PYTHON, START_SECONDS, Process, Stack, our_engine, wait_until

EXAMPLES = ["long", "rename", "insert", "delete", "constant", "docstring", "outdated"]


def edited(instruction: str, code: str) -> str:
    """Follows an instruction of the bundled model's kinds."""
    lines = code.splitlines(keepends=True)
    quoted = re.findall(r"`([^`]*)`", instruction)
    number = int((re.findall(r"line (\d+)", instruction) or ["0"])[0])
    match instruction.split()[0]:
        case "Rename" | "Change":
            return re.sub(rf"\b{quoted[0]}\b", quoted[1], code)
        case "Insert":
            following = lines[number - 1]
            indent = following[: len(following) - len(following.lstrip())]
            return "".join([*lines[: number - 1], f"{indent}{quoted[0]}\n", *lines[number - 1 :]])
        case "Delete":
            return "".join([*lines[: number - 1], *lines[number:]])
        case "Add":
            return "".join([lines[0], f"    {quoted[0]}\n", *lines[1:]])
        case "Repeat":
            return code
    raise AssertionError(f"no such kind: {instruction}")


def prompt(page: Page) -> str:
    """Returns the prompt, to be edited or with what is repeated of it."""
    panel = page.locator(".panel").filter(has=page.get_by_role("heading", name="You ask"))
    return str(panel.locator(".sheet").evaluate("sheet => sheet.value ?? sheet.textContent"))


def test_all_examples_are_answered_rightly_with_and_without_their_predictions(
    visit: Visit, stack: Stack
) -> None:
    page = visit.open(stack.url)
    example = page.get_by_label("Example")
    values = example.locator("option").evaluate_all("all => all.map(option => option.value)")
    assert values == EXAMPLES
    expect(example).to_have_value(EXAMPLES[0])
    run(page)
    assert answer(page) == edited(*prompt(page).split("\n\n", 1))
    # Without its prediction the first takes as long as all others together.
    for name in EXAMPLES[1:]:
        example.select_option(name)
        page.get_by_role("button", name="Race with and without").click()
        expect(page.locator(".verdict")).to_contain_text("Both answers are identical")
        assert answer(page) == edited(*prompt(page).split("\n\n", 1))
        lanes = (
            page.get_by_role("region", name=f"The answer {title}").text_content()
            for title in ("with prediction", "without prediction")
        )
        assert set(lanes) == {answer(page)}
        without_passes, with_passes = (
            int(re.findall(r"(\d+) pass", lane)[0])
            for lane in page.locator(".lane .figures").all_inner_texts()
        )
        # What vLLM drafts depends on what its passes cost, which says nothing where tests run.
        assert ENGINE_PYTHON or with_passes < without_passes
        assert counter(page, "Passes") == str(with_passes)
    page.get_by_role("link", name="Chat").click()
    chats = ask_all_examples(page)
    assert len(chats) > 1
    for chat in chats:
        for question, answered in chat:
            assert answered == edited(*question.split("\n\n", 1))


def test_an_edit_shows_where_each_part_comes_from_and_its_program_runs(
    visit: Visit, stack: Stack
) -> None:
    page = visit.open(stack.url)
    # Where the proposer is late, as it may be on a busy machine, the model goes on without drafts.
    for _ in range(5):
        run(page)
        expect(outcome(page)).to_have_text("complete")
        sources = page.locator(".answer-text .source")
        assert "".join(sources.all_text_contents()) == answer(page)
        predicted = "".join(page.locator(".answer-text .source.prediction").all_text_contents())
        if len(predicted) > 0.8 * len(answer(page)):
            break
    assert len(predicted) > 0.8 * len(answer(page))
    used = page.locator(".followed .part.used")
    assert "".join(used.all_text_contents()) == predicted
    assert page.locator(".followed .part.skipped").first.text_content() == "amount"
    assert page.locator(".followed .anchor").count() >= 3
    assert float(counter(page, "Tokens a pass")) > 4
    assert int(counter(page, "Accepted drafts").removesuffix(" %")) > 80
    assert violations(page) == []
    page.get_by_role("button", name="Python").click()
    expect(page.locator(".snippet pre")).to_contain_text("import OpenAI")
    program = page.locator(".snippet pre").text_content()
    assert run_command(sys.executable, "-c", str(program)).startswith(answer(page))


@our_engine(reason="vLLM has answered before the gateway is killed")
def test_a_server_may_go_away_and_come_back(visit: Visit, stack: Stack) -> None:
    visit.allow_failed_requests()
    page = visit.open(stack.url)
    page.get_by_role("textbox", name="You expect").fill("")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".answer-text")).to_contain_text("def __init__")
    stack.kill_service("gateway")
    broke = "The connection broke before the answer was complete."
    expect(page.get_by_role("alert")).to_contain_text(broke)
    expect(outcome(page)).to_have_text("broke off")
    assert "def __init__" in answer(page)
    gateway = Process("gateway", [], urlsplit(stack.url).netloc, {})
    wait_until(gateway.is_healthy, "the gateway that comes back", START_SECONDS)
    page.get_by_label("Example").select_option("rename")
    run(page)
    expect(outcome(page)).to_have_text("complete")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert answer(page) == edited(*prompt(page).split("\n\n", 1))
