"""Time from a key to the painted page, for reports with a live model: python -m benchmarks.live_page REPORT.html ...

Types 30 times into the text field of each page, at about 64 tokens, in headless Chromium. Needs requirements-dev.txt.
"""

import shutil
import sys
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

TEXT = "One day the cat sat near the dog. " * 7
# Every key gives a text that was not computed before. For a slow model the time includes the pause that it waits for.
TYPE = """async (text) => {
  const field = document.getElementById("live-text");
  const times = [];
  for (let i = 0; i < 32; i++) {
    field.value = text.replace("day", "abcdefghijklmnopqrstuvwxyzABCDEF"[i]);
    const answers = document.getElementById("live-answers");
    const shown = new Promise((done) => new MutationObserver(done).observe(answers, { childList: true }));
    const start = performance.now();
    field.dispatchEvent(new Event("input"));
    await shown;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    times.push(performance.now() - start);
  }
  return times.slice(2);
}"""


def main() -> None:
    """Print a line for each page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in sys.argv[1:]:
            page = browser.new_page()
            page.goto(Path(name).resolve().as_uri())
            times = page.evaluate(TYPE, TEXT)
            size = Path(name).stat().st_size / 1e6
            print(f"{name}  {size:.1f} MB  key to paint: median {median(times):.0f} ms, largest {max(times):.0f} ms")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
