"""The two reports in docs/: newly trained and tested models, or their pages with the present script and style.

    make reports                                 the present script and style in both pages, a second
    python -m research.example_reports           trains and tests both models and writes their pages, a few minutes

A change of page.css or of a page*.js file needs only `make reports`.
"""

import re
import sys
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

from report.page import policy, script_text, style_text

ROOT = Path(__file__).parent.parent
REPORTS = {"stories": ROOT / "docs/report.html", "english": ROOT / "docs/report_english.html"}


def with_present_script(page: str) -> str:
    """Return a page with the script, the style and the policy that `report.page` writes now."""
    script, style = script_text(), style_text()
    parts = {
        r'(?<=Content-Security-Policy" content=")[^"]*': policy(script, style),
        r"(?<=<style>).*?(?=</style>)": style,
        r"(?<=<script>).*?(?=</script>)": script,
    }
    for pattern, text in parts.items():
        found = re.search(pattern, page, re.DOTALL)
        if found is None:
            raise ValueError(f"the page has no {pattern}")
        page = page[: found.start()] + text + page[found.end() :]
    return page


def make(name: str, target: Path, folder: Path) -> None:
    """Train the default model, or that of experiment=english, test it, and copy its report to `target`."""
    runs = folder / name
    experiment = [] if name == "stories" else [f"experiment={name}"]
    cache = f"cache_dir={folder / 'cache'}"
    run([sys.executable, "train.py", *experiment, f"out={runs}", cache], cwd=ROOT, check=True)
    run([sys.executable, "eval.py", f"run={runs}", cache], cwd=ROOT, check=True)

    # The page names the folder of the run, which only this machine has.
    page = (runs / "probe/report.html").read_text(encoding="utf-8")
    target.write_text(page.replace(str(runs), f"runs/{name}").replace(f" {cache}", ""), encoding="utf-8")


def main() -> None:
    """Write both reports."""
    if sys.argv[1:] == ["refresh"]:
        for path in REPORTS.values():
            path.write_text(with_present_script(path.read_text(encoding="utf-8")), encoding="utf-8")
        return
    with TemporaryDirectory() as folder:
        for name, target in REPORTS.items():
            make(name, target, Path(folder))


if __name__ == "__main__":
    main()
