"""The parts of README.md and docs/ that come from the example reports and from research/results.

make reports                                   draws docs/pictures/*.svg and renews the tables of DOCUMENTS
make pages                                     writes PAGES for a browser from their Markdown, to docs/
python -m research.documents pages FOLDER      to another folder
python -m research.documents picture           draws docs/pictures/report.png, which a shared link shows
python -m research.documents stamp             writes into the pages what a shared link shows; before publishing only
"""

import json
import re
import shutil
import sys
from collections.abc import Sequence
from functools import cache, partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markdown_it import MarkdownIt
from PIL import Image

from model.edits import exchange_links, remove_head
from model.observe import HeadEdit
from probe.questions import FRIGHTENED_OR_FEARED, QUESTIONS
from probe.sentences import between_words
from settings import address
from tests.extras.page.sample import model_of, read

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
IT = f"#text={FRIGHTENED_OR_FEARED[0].text}"  # an address of the page; edits follow it
DOCUMENTS = (ROOT / "README.md", DOCS / "teach.md")
PAGES = ("index", "attention", "worksheet", "teach")
DESCRIPTIONS = {
    "index": "Train a small language model, and test which attention head links a pronoun to its antecedent.",
    "attention": "How attention works, from a word to the next word, in code whose output is shown.",
    "worksheet": "One lesson for a class: change a small language model in the browser, and see what it says.",
    "teach": "For the teacher: a lesson of 45 minutes about what a small language model looks at.",
    "report": "A whole language model in one page: cut a line of attention, and see the next word change.",
    "report_english": "A model of English in one page: see whom its heads look at before it writes “she” or “he”.",
}
DRAWING, _, PAGE = (ROOT / "research/documents.css").read_text(encoding="utf-8").partition("\n\n")
Seen = tuple[list[str], np.ndarray, list[tuple[str, float]]]  # words, weights [L, H, W] from the last one, next tokens


@cache
def content(name: str) -> dict[str, Any]:
    """Return what docs/NAME.html shows."""
    page = (DOCS / f"{name}.html").read_text(encoding="utf-8")
    shown: dict[str, Any] = json.loads(page.partition('id="content">')[2].partition("</script>")[0])
    return shown


def keep(kept: list[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Append the attention weights [T, T] of one text to `kept`, and return them as they are."""
    kept.append(weights[0])
    return weights


def see(name: str, address: str) -> Seen:
    """Return what the model in docs/NAME.html does at the last word of an address of the page; a word is a token."""
    # The model, the text and the edits
    live = content(name)["live"]["model"]
    model, text = model_of(live), read(live, address.removeprefix("#text=").partition("&")[0])
    edits = [remove_head(int(layer), int(head)) for layer, head in re.findall(r"&remove=L(\d+)H(\d+)", address)]
    for numbers in re.findall(r"&exchange=L(\d+)H(\d+)\.(\d+)\.(\d+)\.(\d+)", address):
        layer, head, word, left, right = map(int, numbers)
        edits.append(exchange_links(layer, head, word, [left], [right]))

    # The last edit of each head keeps its weights
    kept: list[torch.Tensor] = []
    shape = (model.n_layer, model.n_head)
    edits += [HeadEdit(layer, head, partial(keep, kept)) for layer, head in np.ndindex(*shape)]
    top = model.logits(torch.tensor([text.tokens]), torch.tensor([len(text.tokens) - 1]), edits)[0].softmax(-1).topk(4)
    answers = [live["tokenizer"]["vocabulary"][token] for token in top.indices.tolist()]
    weights = between_words(torch.stack(kept).unflatten(0, shape).numpy(), text)[:, :, -1]
    return text.words, weights, list(zip(answers, top.values.tolist(), strict=True))


def text_at(x: float, y: float, text: str, kind: str = "") -> str:
    """Return the SVG of a text of a class of documents.css."""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(text)}</text>'


def lines(seen: Seen, title: str, heads: Sequence[tuple[int, ...]]) -> str:
    """Return the lines of heads from the last word, weights from .1 on, the two largest as numbers; and next words."""
    words, all_weights, answers = seen

    # The words
    widths = np.array([7.4 * len(word) + 12 for word in words])
    centres = 20 + widths.cumsum() - widths / 2
    parts = [text_at(20, 22, title, "title")]
    parts += [text_at(x, 160, word, "word") for x, word in zip(centres, words, strict=True)]

    # The lines of each head, which bend more the further they go, and its weights
    for i, place in enumerate(heads):
        row = all_weights[place]
        large = [at for at in np.argsort(-row) if row[at] >= 0.1]
        for at in large:
            gap = centres[-1] - centres[at]
            bow = 0 if gap else 24  # height of a line from a word to itself
            top = f"{102 - 0.19 * gap - 6 * i:.0f}"
            curve = f"{centres[-1] - bow:.0f},{top} {centres[at] + bow:.0f},{top} {centres[at]:.0f},142"
            path = f'd="M{centres[-1]:.0f},142 C{curve}" stroke-width="{1 + 4 * row[at]:.1f}"'
            parts.append(f'<path class="line head{i % 4}" {path}/>')
        weights = ", ".join(f"{words[at]} {row[at]:.2f}" for at in large[:2])
        name = f"L{place[0]}H{place[1]}: {weights}"
        parts.append(text_at(20 + 280 * (i % 2), 188 + 20 * (i // 2), name, f"head{i % 4}"))

    # The next words
    for i, (word, chance) in enumerate(answers):
        parts.append(text_at(600, 60 + 24 * i, word) + text_at(860, 60 + 24 * i, f"{chance:.2f}", "number"))
        parts.append(f'<rect class="bar" x="685" y="{50 + 24 * i}" width="{250 * chance:.0f}" height="10"/>')
    return "".join([*parts, text_at(600, 34, "next word", "quiet") if answers else ""])


def thickest_line(seen: Seen, place: tuple[int, ...]) -> str:
    """Return a sentence with the thickest line of one head from its last word, and the next word at its end."""
    words, row, answers = seen[0][1:], seen[1][place][1:], seen[2]  # without the start
    most = int(row.argmax())
    next_word, chance = answers[0]
    names = [*words, next_word]
    widths = np.array([11.0 * len(name) + 12 for name in names])
    centres = 20 + widths.cumsum() - widths / 2
    gap = centres[-2] - centres[most]
    top = 150 - 0.3 * gap
    curve = f"M{centres[-2]:.0f},158 C{centres[-2]:.0f},{top:.0f} {centres[most]:.0f},{top:.0f} {centres[most]:.0f},158"
    title = f"Head L{place[0]}H{place[1]} looks from “{words[-1]}” to “{words[most]}” ({row[most]:.2f})."
    parts = [text_at(20, 24, title, "title")]
    for i, (x, name) in enumerate(zip(centres, names, strict=True)):
        kinds = {most: "head1", len(words): "title"}
        parts.append(text_at(x, 182, name, f"word large {kinds.get(i, '')}"))
    parts.append(text_at(centres[-1], 204, f"{next_word} {chance:.2f}", "word quiet"))
    return "".join([*parts, f'<path class="line head1" d="{curve}" stroke-width="{1 + 6 * row[most]:.1f}"/>'])


def cells(names: Sequence[str], columns: Sequence[str], texts: np.ndarray, shade: np.ndarray) -> str:
    """Return a table [rows, columns] of texts as SVG; `shade` from 0 to 1 is how dark a cell is."""
    parts = [text_at(212 + 80 * i, 28, column, "word") for i, column in enumerate(columns)]
    for i, name in enumerate(names):
        parts.append(text_at(160, 60 + 30 * i, name, "number"))
        for j, text in enumerate(texts[i]):
            box = f'x="{174 + 80 * j}" y="{41 + 30 * i}" fill-opacity="{shade[i, j]:.2f}"'
            parts.append(f'<rect class="cell" {box}/>' + text_at(212 + 80 * j, 60 + 30 * i, text, "word"))
    return "".join(parts)


def stages() -> str:
    """Return the share of right answers to `verb` over the steps of the runs of research.stages, one curve a voice."""
    points = json.loads((ROOT / "research/results/stages.json").read_text(encoding="utf-8"))["points"]
    last = points[-1]["step"]
    parts = [text_at(20, 22, "share of right answers to “verb”", "title"), text_at(860, 232, f"step {last}", "number")]
    for share in (0.0, 0.5, 1.0):
        parts.append(text_at(50, 195 - 150 * share, f"{share:.2f}", "number quiet"))
    kinds = [(2, "active", "two layers, active"), (2, "passive", "two layers, passive"), (1, "active", "one layer")]
    for i, (n_layer, voice, name) in enumerate(kinds):
        path = []
        for point in points:
            if point["n_layer"] == n_layer:
                path.append(f"{60 + 800 * point['step'] / last:.0f},{190 - 150 * point[voice]:.0f}")
        parts.append(f'<polyline class="line head{i}" stroke-width="2" points="{" ".join(path)}"/>')
        parts.append(text_at(420 + 150 * i, 22, name, f"head{i}"))
    return "".join(parts)


def meaning() -> str:
    """Return the information in the decision over the steps of research.meaning, one curve for each part."""
    rows = json.loads((ROOT / "research/results/meaning.json").read_text(encoding="utf-8"))["rows"]
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row["model"].startswith("long") and row["score"] == "decision":
            for part, value in row["parts"].items():
                found.setdefault(part, {}).setdefault(row["step"], []).append(value["value"])
    last = max(found["words"])
    title = "information about the author's choice in the decision, bits per passage, mean of five runs"
    parts = [text_at(20, 22, title, "title"), text_at(860, 232, f"step {last:,}", "number")]
    for bits in (0.0, 0.1, 0.2):
        parts.append(text_at(50, 215 - 680 * bits, f"{bits:.1f}", "number quiet"))
    for i, (part, steps) in enumerate(found.items()):
        path = [f"{60 + 800 * step / last:.0f},{210 - 680 * np.mean(of_runs):.0f}" for step, of_runs in steps.items()]
        parts.append(f'<polyline class="line head{i}" stroke-width="2" points="{" ".join(path)}"/>')
        parts.append(text_at(80 + 100 * i, 48, part, f"head{i}"))
    return "".join(parts)


def pictures() -> dict[str, tuple[int, str]]:
    """Return the height and the content of each picture by its name."""
    # The default run: the block
    addresses = [f"#text={example.text}" for example in FRIGHTENED_OR_FEARED]
    titles = []
    for example in FRIGHTENED_OR_FEARED:
        did = example.text.partition("the cat ")[2].partition(" the dog")[0]
        titles.append(f"“{did}”: where each head looks from “it”")
    titles[0] += " (L0H1: layer 0, head 1)"
    scenes = [see("report", address) for address in addresses]
    places = list(np.ndindex(*scenes[0][1].shape[:2]))
    drawn = [lines(seen, title, places) for seen, title in zip(scenes, titles, strict=True)]
    height = 200 + 20 * ((len(places) - 1) // 2)
    place = tuple(content("report")["findings"][0]["place"])
    shown = [thickest_line(seen, place) for seen in scenes[:4]]  # documents.css turns four scenes
    moving = [f'<g class="scene" style="animation-delay:{2.5 * i}s">{scene}</g>' for i, scene in enumerate(shown)]

    # The head of the English model whose row at "flies" differs most between the two sentences
    texts = ("time flies", "fruit flies")
    flies = [see("report_english", f"#text={text}") for text in texts]
    change = np.abs(flies[0][1] - flies[1][1]).sum(axis=2)
    insect_head = tuple(np.argwhere(change == change.max())[0])
    insects = [lines((*seen[:2], []), f"“{text}”", [insect_head]) for seen, text in zip(flies, texts, strict=True)]

    # The mask, and the scores of a block in docs/attention.md
    words = "The hiking trail led us through bear country".split()
    masked = np.full((8, 8), "−∞", dtype=object)
    for i, j in zip(*np.tril_indices(8), strict=True):
        masked[i, j] = f"q{i + 1}·k{j + 1}"
    scores = torch.tensor(np.random.RandomState(42).randn(8))
    rows = torch.stack([scores, scores.softmax(0), (100 * scores).softmax(0)]).numpy()
    names = ["score", "softmax", "softmax, × 100"]
    return {
        "demo": (220, "".join(moving)),
        "lines": (4 * height, "".join(f'<g transform="translate(0 {height * i})">{drawn[i]}</g>' for i in range(4))),
        "flies": (200, f'{insects[0]}<g transform="translate(440 0)">{insects[1]}</g>'),
        "mask": (290, cells(words, words, masked, 0.25 * np.tril(np.ones((8, 8))))),
        "stages": (240, stages()),
        "meaning": (240, meaning()),
        "softmax": (140, cells(names, "12345678", np.char.mod("%.3f", rows), rows.clip(0) * [[0], [0.6], [0.6]])),
    }


def renewed(row: re.Match[str]) -> str:
    """Return the new row of a table: a sentence in the report's first head, an address, or a question over seeds."""
    # A question over seeds
    start = row[1]
    if start in QUESTIONS:
        means = json.loads((ROOT / "research/results/link_head.json").read_text(encoding="utf-8"))["means"]
        mean = next(mean for mean in means if mean["question"] == start)
        values = [mean["values"]["accuracy"], max(mean["rules"].values()), mean["untrained"]["accuracy"]]
        numbers = " | ".join(f"{value:.3f}" for value in values)
        return f"| {start} | {QUESTIONS[start].description} | {mean['supported']} of {mean['n_seeds']} | {numbers} |"

    # An address of the page, or a sentence in the first head of the report
    address = start.strip("`")
    words, weights, answers = see("report", IT + address if address.startswith("&") else address)
    if start.startswith("`"):
        return f"| {start} | {answers[0][0]} {answers[0][1]:.2f} |"
    head = weights[tuple(content("report")["findings"][0]["place"])]
    cat, dog = (head[words.index(noun)] for noun in ("cat", "dog"))
    return f"| {start} | {cat:.2f} | {dog:.2f} | {', '.join(word for word, _ in answers[:2])} |"


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def main() -> None:
    """Write pictures and tables, or do what the first argument names."""
    if len(sys.argv) > 1:
        command = {"pages": write_pages, "picture": draw_report, "stamp": stamp}[sys.argv[1]]
        command(Path(sys.argv[2]) if len(sys.argv) > 2 else DOCS)
        return

    # Pictures
    for name, (height, drawing) in pictures().items():
        size = f'viewBox="0 0 880 {height}" width="880" height="{height}"'
        paper = f'<rect width="880" height="{height}" fill="#fbfaf6"/>'
        picture = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{DRAWING}</style>{paper}{drawing}</svg>\n'
        (DOCS / f"pictures/{name}.svg").write_text(picture, encoding="utf-8")

    # Tables
    for path in DOCUMENTS:
        rows = r"^\| (`(?:#text=|&).*?`|One sunny day.*?|verb|number|gender) \| .*$"
        path.write_text(re.sub(rows, renewed, path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


def write_pages(folder: Path) -> None:
    """Write PAGES to `folder`, without links to files outside docs/."""
    for page in PAGES:
        if page == "index":  # the beginning of README, seen from docs/
            text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0].replace("docs/", "")
        else:
            text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        body = MarkdownIt("commonmark").enable("table").render(text)
        body = re.sub(r"<h(\d)>(.*?)</h", lambda part: f'<h{part[1]} id="{anchor(part[2])}">{part[2]}</h', body)
        body = re.sub(r"<code>(#(?:text|lesson)=[^<]*)</code>", r'<a href="report.html\1"><code>\1</code></a>', body)
        body = re.sub(r"<code>(&amp;[^<.][^<]*)</code>", rf'<a href="report.html{IT}\1"><code>\1</code></a>', body)
        body = re.sub(rf'href="({"|".join(PAGES)})\.md', r'href="\1.html', body)
        body = re.sub(r'<a href="[\w./-]+\.(?:md|ipynb|txt)[^"]*">(.*?)</a>', r"\1", body)
        metas = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">'
        title = escape(text.partition("\n")[0].removeprefix("# "))
        head = f'<!doctype html>\n<html lang="en">\n{metas}\n<title>{title}</title>\n'
        (folder / f"{page}.html").write_text(
            f"{head}<style>\n{PAGE}</style>\n<main>\n{body}</main>\n", encoding="utf-8"
        )


def draw_report(folder: Path) -> None:
    """Write a picture of the first screen of report.html, in the shape that a shared link shows."""
    from playwright.sync_api import sync_playwright  # of the tests; the page needs a browser, the other pictures none

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 630})
        page.goto((folder / "report.html").absolute().as_uri())
        page.get_by_text("decides “").wait_for()
        picture = Image.open(BytesIO(page.screenshot()))
    picture.quantize(64).save(folder / "pictures/report.png", optimize=True)  # a quarter of the size


def stamp(folder: Path) -> None:
    """Write the descriptions of the pages into them and, where the address is known, what a shared link shows.

    llms.txt gets the addresses of the project. The pages must be new: nothing is replaced.
    """
    for page, description in DESCRIPTIONS.items():
        path = folder / f"{page}.html"
        before, _, after = path.read_text(encoding="utf-8").partition("<title>")
        metas = f'<meta name="description" content="{description}">\n'
        if address.PAGES:
            url = f"{address.PAGES}{page}.html".removesuffix("index.html")
            metas += f'<link rel="canonical" href="{url}">\n'  # links that the page makes name this address
            shown = {"title": after.partition("</title>")[0], "description": description, "url": url}
            shown["image"] = f"{address.PAGES}pictures/report.png"
            metas += "".join(f'<meta property="og:{name}" content="{value}">\n' for name, value in shown.items())
        path.write_text(f"{before}{metas}<title>{after}", encoding="utf-8")
    names = {url: name for name, url in address.urls().items()}  # the repository has two
    if names:
        with (folder / "llms.txt").open("a", encoding="utf-8") as file:
            file.write("\n## Addresses\n\n" + "".join(f"- {name}: {url}\n" for url, name in names.items()))


if __name__ == "__main__":
    main()
