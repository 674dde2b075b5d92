"""A real browser for the tests of pages and figures: Debian's Chromium."""

import os
import shutil
from importlib.util import find_spec

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
# The marks and words of a picture that reach beyond its frame
OUTSIDE = """svg => {
  const { width, height } = svg.viewBox.baseVal;
  const outside = [];
  for (const shape of svg.querySelectorAll("text, rect, line, path, polyline")) {
    const { x, y, width: w, height: h } = shape.getBBox();
    const half = shape.tagName === "text" ? 0 : (parseFloat(shape.getAttribute("stroke-width")) || 0) / 2;
    const toPicture = svg.getCTM().inverse().multiply(shape.getCTM());
    for (const corner of [[x - half, y - half], [x + w + half, y + h + half]]) {
      const at = new DOMPoint(...corner).matrixTransform(toPicture);
      if (at.x < 0 || at.y < 0 || at.x > width || at.y > height) outside.push(shape.textContent || shape.tagName);
    }
  }
  return outside;
}"""


@pytest.fixture(scope="session")
def browser():
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
