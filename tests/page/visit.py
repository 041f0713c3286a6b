"""A browser's visit to the page, watched."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
# Chromium tells of every status that is no success.
FAILED_REQUEST = re.compile("Failed to load resource")


class Visit:
    """Collects what is wrong: messages on the console, errors, requests to other servers."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.problems: list[str] = []
        self._allowed: re.Pattern[str] | None = None
        self._pages: list[Page] = []
        self._origin = ""

    def open(self, url: str, *, wait: bool = True, **context: Any) -> Page:
        """Opens the page in a window of its own; `context` are playwright's options."""
        self._origin = urlsplit(url).netloc
        page = self._browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **context})
        self._pages.append(page)
        page.set_default_timeout(60_000)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._on_request)
        page.goto(url)
        if wait:
            expect(page.locator(".server")).to_have_attribute("data-status", "ready")
        return page

    def allow_failed_requests(self) -> None:
        """Lets requests fail, as the test makes them."""
        self._allowed = FAILED_REQUEST

    def close(self) -> None:
        """Closes all windows."""
        for page in self._pages:
            page.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if self._allowed is None or not self._allowed.search(message.text):
            self.problems.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self._origin:
            self.problems.append(f"request to {request.url}")


def run(page: Page) -> None:
    """Runs the request and waits for the end of the answer."""
    page.get_by_role("button", name="Run").click()
    expect(outcome(page)).not_to_have_text("streams")


def outcome(page: Page) -> Locator:
    """Returns what is said of how the answer ended."""
    return page.locator(".outcome")


def answer(page: Page) -> str:
    """Returns the shown answer."""
    text = page.get_by_role("region", name="The answer", exact=True).text_content()
    assert text is not None
    return text


def counter(page: Page, name: str) -> str:
    """Returns the value of a counter."""
    row = page.locator(".counters > div").filter(has=page.get_by_text(name, exact=True))
    return row.locator("dd").inner_text()


def ask_all_examples(page: Page) -> list[list[tuple[str, str]]]:
    """Goes through the chat's examples; returns the questions and answers of each."""
    examples = page.get_by_role("group", name="Examples").get_by_role("button")
    return [chat_example(page, examples, number) for number in range(examples.count())]


def chat_example(page: Page, examples: Locator, number: int) -> list[tuple[str, str]]:
    """Asks an example and what follows it, and begins a new chat."""
    turns = page.locator(".turn")
    following = examples.nth(number)
    while turns.count() == 0 or examples.count() > 0:
        asked = turns.count() + 1
        following.click()
        expect(turns).to_have_count(asked)
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        following = examples
    expect(page.locator(".turn .outcome")).to_contain_text(["complete"] * turns.count())
    questions = page.locator(".question").evaluate_all("all => all.map(it => it.lastChild.data)")
    answers = page.locator(".turn .answer-text").all_text_contents()
    page.get_by_role("button", name="New chat").click()
    expect(turns).to_have_count(0)
    return list(zip(questions, answers, strict=True))


def violations(page: Page) -> list[str]:
    """Returns what axe finds to be inaccessible, all rules applied."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [
        f"{rule['id']}: {node['html'][:150]} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]
