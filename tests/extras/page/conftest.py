"""Pages shown in a real browser, with no way to any network."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from extras.page.page import page
from tests.extras.page import sample

SCREEN = {"width": 1280, "height": 900}
NEXT_TASK = "new Promise((resolve) => setTimeout(() => setTimeout(resolve)))"  # and that after it, as for cards
Show = Callable[..., AbstractContextManager["Opened"]]


@dataclass
class Opened:
    """A page in the browser, and all that it said and asked for."""

    page: Any
    url: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # console messages, uncaught errors, dialogs

    def find(self, selector):
        """Return where these elements are, once all parts show the state."""
        self.page.wait_for_selector("body:not(:has(#cards[aria-busy=true]))")
        return self.page.locator(selector)

    def said(self, selector):
        """Return the visible text of the first element."""
        return self.find(selector).first.inner_text()

    def click(self, selector):
        self.find(selector).first.click()

    def chip(self, *words):
        """Click the words below the field, one after the other."""
        for word in words:
            self.click(f".chip[data-name='{word}']")

    def card(self, number):
        self.click(f"[data-name=card-{number}]")
        self.find(f"[data-name=card-{number}][aria-pressed=true]").wait_for()

    def text(self):
        """Return the sentence in the field of the live section."""
        return self.find("#live-text").input_value()

    def read_text(self):
        """Return the sentence as the model reads it, from the page's Python."""
        self.find("#share").evaluate("share => { share.open = true; }")
        return json.loads(re.search(r'tokenize\((".*")\)', self.find("#live-code").text_content())[1])

    def type(self, text):
        """Type a sentence into the live section; the page reads it in the next task."""
        self.find("#live-text").fill(text)
        self.page.evaluate(NEXT_TASK)

    def searched(self):
        """Wait until every line of the sentence has been cut."""
        self.find("#invitation:not(:has-text(' …'))").wait_for()

    def lost(self, heads):
        """Return what a cut of each line loses, by head and word, as its tooltip says; no words that stand twice."""
        lost = {}
        words = self.find("#live-lines .word text").all_text_contents()
        for head in heads:
            self.pick(head)
            for title in self.find("#live-lines .link title").all_text_contents():
                found = re.search(r"to “(.*)”: [\d.]+; cut, “.*” loses (-?[\d.]+)$", title)
                if found and words.count(found[1]) == 1:
                    lost[head, found[1]] = float(found[2])
        return lost

    def go(self, state):
        """Follow a link to this state, the part behind #, inside the open page."""
        self.page.goto(f"{self.url}#{state}")
        self.page.evaluate(NEXT_TASK)

    def at(self, state):
        """Open the page again; `state` is the part behind #, or a whole address."""
        self.page.goto("about:blank")
        self.page.goto(state if state.startswith("file:") else f"{self.url}#{state}".removesuffix("#"))

    def resize(self, screen):
        """Change the size of the screen; the page draws its lines again in the next frame."""
        self.page.set_viewport_size(screen)
        self.page.evaluate(f"new Promise(requestAnimationFrame).then(() => {NEXT_TASK})")

    def weights(self, page=None):
        """Return the weights in the titles of the lines from the chosen word to every word up to it."""
        of_lines = "lines => lines.map(line => [line.dataset.name.slice(5), line.querySelector('title').textContent])"
        lines = (page or self.page).locator("#live-lines .link").evaluate_all(of_lines)
        titles = sorted(lines, key=lambda line: int(line[0]))
        return [float(re.search(r": (\d\.\d\d)", title)[1]) for _, title in titles]

    def line(self, word):
        """Return the end of the chosen head's line to a word, where it can be clicked."""
        return self.find(f"#live-lines .link:has(title:text('to “{word}”')) rect").first

    def press(self, name):
        self.page.get_by_role("button", name=name, exact=True).click()

    def next_words(self, name="live-next"):
        """Return the listed next words with their probabilities: "purred 0.29"."""
        texts = [" ".join(text.split()) for text in self.find(f"#{name} li").all_inner_texts()]
        return [re.sub(r" \([\w, ]+\)(?= [\d.]+$)", "", text) for text in texts]  # without the words that it fits

    def look_from(self, word):
        """Click the bar under a word, or the word where it has none."""
        self.find(
            f"#live-lines .word:has(title:text-is('{word}'), text:text-is('{word}')) :is(.hit, text)"
        ).last.click()

    def remove(self, head):
        self.pick(head)
        self.press(f"Remove {head}")

    def pick(self, head):
        self.click(f"#live-heads .pick[data-name={head}]")

    def picked(self):
        return self.find(".pick[aria-pressed=true]").get_attribute("data-name")

    def fits(self):
        """Return whether the page is no wider than the screen."""
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def shown_weights(row, query):
    return pytest.approx(list(row[: query + 1]), abs=0.0051)


@pytest.fixture(scope="session")
def show(browser, tmp_path_factory):
    """Open a page (its HTML, or a content, by default that of `sample`) from disk with the network cut.

    At the end it must have complained about nothing and asked for nothing but itself.
    """

    @contextmanager
    def opened(shown=None, **settings):
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(shown if isinstance(shown, str) else page(shown or sample.content()), encoding="utf-8")
        context = browser.new_context(offline=True, **{"viewport": SCREEN} | settings)
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


@pytest.fixture(scope="module")
def opened(show):
    """The page of `sample`, for all tests of a file."""
    with show() as view:
        yield view


@pytest.fixture
def view(opened):
    """The page that is `opened`, as a visitor first sees it."""
    opened.page.set_viewport_size(SCREEN)
    opened.at("")
    yield opened
    assert opened.complaints == []
