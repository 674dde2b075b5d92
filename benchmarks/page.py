"""How fast a page is in Chromium: python -m benchmarks.page runs/RUN/probe/report.html ... Needs requirements-dev.txt.

Of each file: its size, when it is first painted and when it is ready, and how long it takes from a click on a head, and
from a move of the slider, to the next painted frame while its longest sentence is shown. A page with a text of 512
tokens: `train.py model.context_length=512 max_steps=2`, then `eval.py run=... text="..."`.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync".split()
N = 20
_TIMES = """() => new Promise((done) => new PerformanceObserver((list) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) done([paint.startTime, performance.getEntriesByType("navigation")[0].loadEventEnd]);
}).observe({ type: "paint", buffered: true }))"""
# The frame in which the change is painted has been handed over when a task runs after its animation callbacks.
_CHANGE = """([selector, value]) => new Promise((done) => {
  const node = document.querySelector(selector);
  const began = performance.now();
  if (value === null) node.click();
  else { node.value = value; node.dispatchEvent(new Event("input")); }
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""


def main() -> None:
    """Print one row of a table for each file named on the command line."""
    print(f"| page | MB | first paint, ms | ready, ms | words | click, ms | slider, ms | medians of {N} |")
    print("|---|---|---|---|---|---|---|---|")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name in sys.argv[1:]:
            path = Path(name).resolve()
            loads = [_load(browser, path) for _ in range(N)]
            page = browser.new_page(offline=True)
            page.goto(path.as_uri())
            n_words = _open_longest(page)
            times = [*(statistics.median(column) for column in zip(*loads, strict=True)), n_words, *_changes(page)]
            print(f"| {name} | {path.stat().st_size / 1e6:.2f} | " + " | ".join(f"{one:.0f}" for one in times) + " | |")
        browser.close()


def _load(browser: Any, path: Path) -> list[float]:
    """Return the milliseconds from navigation to the first paint and to the end of loading, in a fresh context."""
    page = browser.new_page(offline=True)
    page.goto(path.as_uri())
    times = page.evaluate(_TIMES)
    page.close()
    return times


def _open_longest(page: Page) -> int:
    """Show the sentence of the most words; return how many it has."""
    found = []
    for group in [*range(page.locator("#view-groups input").count())] or [None]:
        for card in range(_cards(page, group)):
            page.locator(".mini").nth(card).click()
            found.append((page.locator(".looks [role=option]").count(), group, card))
    if not found:
        return 0
    n_words, group, card = max(found, key=lambda one: one[0])
    _cards(page, group)
    page.locator(".mini").nth(card).click()
    return n_words


def _cards(page: Page, group: int | None) -> int:
    if group is not None:
        page.locator("#view-groups input").nth(group).check()
    return page.locator(".mini").count()


def _changes(page: Page) -> list[float]:
    """Return the median milliseconds of a click on a head, and of a move of the slider where there is one."""
    n_heads, slider = page.locator(".map button").count(), page.locator("#step")
    n_steps = int(slider.get_attribute("max") or 0) if slider.count() else 0
    names = [page.locator(".map button").nth(i % n_heads).get_attribute("data-head") for i in range(N)]
    clicks = [page.evaluate(_CHANGE, [f"[data-head={name}]", None]) for name in names]
    moves = [page.evaluate(_CHANGE, ["#step", i * n_steps // N]) for i in range(N)] if n_steps else [0.0]
    return [statistics.median(clicks), statistics.median(moves)]


if __name__ == "__main__":
    main()
