"""A browser and a fake server for the page."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.page.fake_server import FakeServer
from tests.page.visit import Visit

# Machines that run other tests besides are slow.
expect.set_options(timeout=60_000)


# One for each module, so that its event loop does not run while other modules use theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        # Chromium's sandbox cannot be used by root.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """A visit that nothing may be wrong with but what the test says."""
    visited = Visit(browser)
    yield visited
    visited.close()
    assert visited.problems == []
