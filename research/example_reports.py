"""The two reports in docs/: newly trained and tested models, or their present content as the program writes it now.

    make reports                                 after a change of page.html, page.css or a page*.js file, a second
    python -m research.example_reports           trains and tests both models and writes their pages, a few minutes

The content is the JSON that a page carries.
"""

import json
import re
import sys
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

from extras.page.page import page
from extras.page.shown import PageContent
from settings.typed_json import from_json

ROOT = Path(__file__).parent.parent
REPORTS = {"stories": ROOT / "docs/report.html", "english": ROOT / "docs/report_english.html"}
# The first registered run of the long recipe, which leads to the right person more often than the short one.
ARGUMENTS = {
    "stories": [],
    "english": ["experiment=english/long", "seed=381", "precision=bfloat16", "threads=1"],
}


def written_again(html: str) -> str:
    """Return a page with the content of `html`, in the present format."""
    found = re.search(r'id="content">(.*?)</script>', html, re.DOTALL)
    if found is None:
        raise ValueError("the page has no content")
    return page(from_json(PageContent, json.loads(found[1]), "page"))


def make(name: str, target: Path, folder: Path) -> None:
    """Train the model of a report, test it, and copy its report to `target`."""
    runs = folder / name
    cache = f"cache_dir={folder / 'cache'}"
    run([sys.executable, "train.py", *ARGUMENTS[name], f"out={runs}", cache], cwd=ROOT, check=True)
    run([sys.executable, "eval.py", f"run={runs}", cache], cwd=ROOT, check=True)

    # The page names the folder of the run, which only this machine has.
    html = (runs / "probe/report.html").read_text(encoding="utf-8")
    html = html.replace(str(runs), f"runs/{name}").replace(f" {cache}", "")
    html = html.replace("/python train.py", f"/python train.py out=runs/{name}")
    if name == "stories":  # its model knows a few hundred words, so it leads to the other page
        html = html.replace('"english":""', '"english":"report_english.html"')
    target.write_text(written_again(html), encoding="utf-8")


def main() -> None:
    """Write both reports."""
    if sys.argv[1:] == ["refresh"]:
        for path in REPORTS.values():
            path.write_text(written_again(path.read_text(encoding="utf-8")), encoding="utf-8")
        return
    with TemporaryDirectory() as folder:
        for name, target in REPORTS.items():
            make(name, target, Path(folder))


if __name__ == "__main__":
    main()
