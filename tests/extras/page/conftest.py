"""A real browser for the page's tests, Debian's Chromium with no way to any network, and pages shown in it."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from extras.page.page import page
from tests.extras.page import sample

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
Show = Callable[..., AbstractContextManager["Opened"]]


class Markup(HTMLParser):
    """Tags and attributes of a page, outside its own scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@dataclass
class Opened:
    """A page in the browser, and all that it said and asked for."""

    page: Any
    url: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # console messages, uncaught errors, dialogs

    def find(self, selector: str, **options: Any) -> Any:
        return self.page.locator(selector, **options)

    def said(self, selector: str) -> str:
        """Return the visible text of the first element."""
        return self.find(selector).first.inner_text()

    def click(self, selector: str) -> None:
        self.find(selector).first.click()

    def chip(self, *words: str) -> None:
        """Click the words below the field, one after the other."""
        for word in words:
            self.click(f".chip[data-name='{word}']")

    def card(self, number: int) -> None:
        self.click(f"[data-name=card-{number}]")
        self.find(f"[data-name=card-{number}][aria-pressed=true]").wait_for()

    def text(self) -> str:
        """Return the sentence in the field of the live section."""
        return self.find("#live-text").input_value()

    def type(self, text: str) -> None:
        """Type a sentence into the live section; the page reads it in the next task."""
        self.find("#live-text").fill(text)
        self.page.evaluate("new Promise((resolve) => setTimeout(resolve, 0))")

    def at(self, state: str) -> None:
        """Open the page again; `state` is the part behind #, or a whole address."""
        self.page.goto("about:blank")
        self.page.goto(state if state.startswith("file:") else f"{self.url}#{state}")

    def weights(self, page: Any = None) -> list[float]:
        """Return the weights in the titles of the lines from the chosen word to every word up to it."""
        of_lines = "lines => lines.map(line => [line.dataset.name.slice(5), line.querySelector('title').textContent])"
        lines = (page or self.page).locator("#live-lines .link").evaluate_all(of_lines)
        titles = sorted(lines, key=lambda line: int(line[0]))
        return [float(re.search(r": (\d\.\d\d)", title)[1]) for _, title in titles]

    def line(self, word: str) -> Any:
        """Return the end of the chosen head's line to a word, where it can be clicked."""
        return self.find(f"#live-lines .link:has(title:text('to “{word}”')) rect").first

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def next_words(self, name: str = "live-next") -> list[str]:
        """Return the listed next words with their probabilities: "purred 0.29"."""
        texts = [" ".join(text.split()) for text in self.find(f"#{name} li").all_inner_texts()]
        return [re.sub(r" \([\w, ]+\)(?= [\d.]+$)", "", text) for text in texts]  # without the words that it fits

    def pick(self, head: str) -> None:
        self.click(f"#live-lines .pick[data-name={head}]")

    def picked(self) -> str:
        return self.find(".pick[aria-pressed=true]").get_attribute("data-name")

    def fits(self) -> bool:
        """Return whether the page is no wider than the screen."""
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def shown_weights(row: Any, query: int) -> Any:
    return pytest.approx(list(row[: query + 1]), abs=0.0051)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start Chromium; without Chromium or Playwright, the tests are skipped, in continuous integration they fail."""
    path = shutil.which("chromium")
    if path is None or find_spec("playwright") is None:
        absent = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        absent("pip install -r requirements-dev.txt, and apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Show:
    """Open a page (its HTML, or a content, by default that of `sample`) from disk with the network cut.

    At the end it must have complained about nothing and asked for nothing but itself.
    """

    @contextmanager
    def opened(shown: Any = None, **settings: Any) -> Iterator[Opened]:
        path = tmp_path / "report.html"
        path.write_text(shown if isinstance(shown, str) else page(shown or sample.content()), encoding="utf-8")
        context = browser.new_context(offline=True, **{"viewport": {"width": 1280, "height": 900}} | settings)
        view = Opened(context.new_page(), path.as_uri())
        context.on("request", lambda request: view.requests.append(request.url))
        context.route("**/*", lambda route: route.continue_() if route.request.url == view.url else route.abort())
        for event in ("console", "pageerror", "dialog", "popup"):
            view.page.on(event, lambda told: view.complaints.append(str(told)))
        view.page.set_default_timeout(5000)
        view.page.goto(view.url)
        yield view
        assert view.complaints == []
        assert {*view.requests} == {view.url}
        context.close()

    return opened


@pytest.fixture
def view(show: Show) -> Iterator[Opened]:
    """The page of `sample`."""
    with show() as view:
        yield view
