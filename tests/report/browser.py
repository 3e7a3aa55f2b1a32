"""A real browser for tests of the page: Chromium, driven by Playwright. Without one, such tests are skipped by name."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_BROWSER = "no browser: install Chromium (apt install chromium) and playwright"
NO_AXE = "no axe-core: .ci/run puts it into build/axe-core"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def find_chromium() -> str | None:
    """Return the browser's program, of the variable FEDATLAS_CHROMIUM or by its usual names."""
    return os.environ.get("FEDATLAS_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def read_axe() -> str:
    """Return the source of axe-core, or skip the test."""
    path = ROOT / "build" / "axe-core" / "axe.min.js"
    if not path.exists():
        pytest.skip(NO_AXE)
    return path.read_text(encoding="utf-8")


@contextmanager
def start_browser() -> Iterator["Browser"]:
    """Start a browser without a window, or skip the test."""
    program = find_chromium()
    if program is None:
        pytest.skip(NO_BROWSER)
    sync = pytest.importorskip("playwright.sync_api", reason=NO_BROWSER)
    with sync.sync_playwright() as playwright:
        # Without a sandbox, as CI runs as root; the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page that is open in the browser, and all that it said or asked for."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: Path) -> "Page":
        """Open a file and wait until all is drawn."""
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector('body[data-ready="1"]', timeout=20_000)
        return self.page

    def check_quiet(self, path: Path) -> None:
        """Fail if the page wrote to the console, or asked for anything but itself and images in itself."""
        assert self.said == []
        assert [url for url in self.asked if not url.startswith(("data:", "blob:"))] == [path.resolve().as_uri()]


@contextmanager
def open_page(browser: "Browser", path: Path, *, size: dict[str, int] = DESKTOP, **options: Any) -> Iterator["Page"]:
    """Open a page without a network, and check at the end that it was quiet."""
    context = browser.new_context(viewport=size, offline=True, **options)  # type: ignore[arg-type]
    watched = Watched(context.new_page())
    try:
        yield watched.open(path)
        watched.check_quiet(path)
    finally:
        context.close()


def script(page: "Page", words: str, argument: object = None) -> Any:
    """Return the value of a JavaScript function on the page."""
    return page.evaluate(words, argument)
