"""Makes the pictures of the page in docs/images, from services with SmolLM2 and Chromium."""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, FloatRect, Page, ViewportSize, expect, sync_playwright

FOLDER = Path(__file__).parent / "images"
MAX_BYTES = 150_000
WIDE: ViewportSize = {"width": 1360, "height": 985}
CHAT: ViewportSize = {"width": 1000, "height": 985}
NARROW: ViewportSize = {"width": 390, "height": 844}
TIMEOUT_MS = 60_000
Scheme = Literal["light", "dark"]
MARGIN = 24


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a gateway with models/smollm2, whose answers are shown")
    url = parser.parse_args().url.rstrip("/")
    FOLDER.mkdir(exist_ok=True)
    expect.set_options(timeout=TIMEOUT_MS)
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        # First, as it lets everything be loaded that is loaded at first use.
        take_race(browser, url)
        take_edit(browser, url, "page-text.png", "light", WIDE)
        take_edit(browser, url, "page-narrow.png", "light", NARROW)
        take_chat(browser, url, "page-chat.png", "light", CHAT, full_page=True)
        take_chat(browser, url, "page-chat-narrow.png", "dark", NARROW)
        browser.close()
    too_large = [path.name for path in FOLDER.glob("page-*.png") if path.stat().st_size > MAX_BYTES]
    if too_large:
        sys.exit(f"larger than {MAX_BYTES} bytes: {', '.join(too_large)}")


def take_edit(browser: Browser, url: str, name: str, scheme: Scheme, size: ViewportSize) -> None:
    """The first example, which has ended."""
    page = opened(browser, url, scheme, size)
    finish(page, "Run")
    page.screenshot(path=FOLDER / name)
    page.close()


def take_race(browser: Browser, url: str) -> None:
    """A race that has ended, and its chart."""
    page = opened(browser, url, "light", WIDE)
    finish(page, "Race with and without")
    expect(page.locator(".verdict")).to_contain_text("identical")
    race, passes = page.locator(".race").bounding_box(), page.locator(".passes").bounding_box()
    if race is None or passes is None:
        raise RuntimeError("the page shows no race")
    bottom = passes["y"] + passes["height"] + MARGIN
    clip: FloatRect = {
        "x": race["x"] - MARGIN,
        "y": race["y"] + 1,
        "width": race["width"] + 2 * MARGIN,
        "height": bottom - race["y"],
    }
    page.screenshot(path=FOLDER / "page-race.png", full_page=True, clip=clip)
    page.close()


def take_chat(
    browser: Browser,
    url: str,
    name: str,
    scheme: Scheme,
    size: ViewportSize,
    *,
    full_page: bool = False,
) -> None:
    """The first of the chat's examples, to its end."""
    page = opened(browser, f"{url}/#chat", scheme, size)
    examples = page.get_by_role("group", name="Examples").get_by_role("button")
    stop = page.get_by_role("button", name="Stop")
    while examples.count() > 0:
        examples.first.click()
        expect(stop).to_be_enabled()
        expect(stop).to_be_disabled()
    page.screenshot(path=FOLDER / name, full_page=full_page)
    page.close()


def opened(browser: Browser, url: str, scheme: Scheme, size: ViewportSize) -> Page:
    """Returns the page when it knows its server."""
    page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page.goto(url)
    expect(page.locator(".server")).to_have_attribute("data-status", "ready")
    return page


def finish(page: Page, button: str) -> None:
    """Runs and waits for the whole answer."""
    page.get_by_role("button", name=button).click()
    expect(page.locator(".outcome")).to_have_text("complete")


if __name__ == "__main__":
    main()
