"""report.html: what is known of a run, gathered from its directory, as one page; nothing is probed for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.open import SCHEMA_VERSION, Opened, sound

if TYPE_CHECKING:
    from io import FileIO

    from report.sentences import Pen

PAGE = "report.html"


TEXTS = "sentences.json"


OWNER = "model.json"  # beside probe/ of a model from elsewhere: whose it is


_MOST_TEXTS = 12  # of the user's own that a page keeps


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe wrote of a run, in memory or read again."""

    results: Mapping[str, Any]  # probe.json
    cards: Sequence[Mapping[str, Any]]  # claims.json
    items: str  # items.jsonl


def read_probe(opened: Opened) -> tuple[Probed | None, list[str]]:
    """Return what a probe of this very checkpoint has written, and a note where there is none.

    Raises ValueError in one line where a file of it is damaged or missing.
    """
    folder, probe_it = opened.run / "probe", opened.origin.command
    if not opened.is_testable:
        return None, ["Trained on a text without gold links: its heads can be looked at, but no claim can be tested."]
    if not (folder / "probe.json").exists():
        what = "model" if opened.is_from_elsewhere else "run"
        return None, [f"This {what} has not been probed, so nothing here says whether a head is real: {probe_it}"]
    with sound(folder / "probe.json", f"{probe_it} writes it anew"):
        results = json.loads((folder / "probe.json").read_text())
        same = results["model"]["step"], results["schema_version"], results["data"]["fingerprint"]
        other = any(results["model"].get(name) != opened.origin.shape.get(name) for name in ("sha256", "commit"))
    if other:
        return None, [f"The last probe was of other weights, so it is left out here: {probe_it} probes these"]
    if same != (opened.step, SCHEMA_VERSION, opened.data_fingerprint):
        what = f"step {same[0]}" if same[0] != opened.step else "another version of the probe or of the stories"
        return None, [f"The last probe was of {what}, so it is left out here: {probe_it} probes step {opened.step}"]
    return _whole(opened, results, f"{probe_it} writes it anew"), []


def _whole(opened: Opened, results: Mapping[str, Any], remedy: str) -> Probed:
    """Return a probe whose files hold all that a page takes of them; ValueError names the first that does not."""
    from probe.study import HEADLINE
    from report.content import Found, content
    from report.page import page
    from report.sentences import median_block

    folder, run = opened.run / "probe", about(opened)
    with sound(folder / "probe.json", remedy):
        page(content(Found(run=run, sentences=[], probe=results)))
    with sound(folder / "claims.json", remedy):
        cards = json.loads((folder / "claims.json").read_text())
        page(content(Found(run=run, sentences=[], probe=results, cards=cards)))
        if {one["question"] for one in results["selected"] if HEADLINE in one["test"]} - {
            card["question"] for card in cards
        }:
            raise ValueError("a question without its card")
    with sound(folder / "items.jsonl", remedy):
        items = (folder / "items.jsonl").read_text()
        for one in results["selected"]:
            if len(median_block(pen_of(opened), 1, one["question"], one["median"], items)) != 4:
                raise ValueError("a median block without its four cells")
    return Probed(results, cards, items)


def read_texts(run: Path) -> list[str]:
    """Return the user's own sentences, the newest first; ValueError in one line where the file is damaged."""
    path = run / "probe" / TEXTS
    with sound(path, "delete it to go without the sentences of yours that it holds"):
        found = json.loads(path.read_text()) if path.exists() else []
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ValueError("no list of texts")
        "".join(found).encode()  # half a surrogate is no text
    return found


def read_sound_texts(run: Path) -> list[str]:
    """Return the user's own sentences, none where the file is damaged: that is warned of and keeps nobody waiting."""
    import sys

    try:
        return read_texts(run)
    except ValueError as error:
        print(f"warning: {error}", file=sys.stderr)
        return []


def with_text(texts: Sequence[str], text: str) -> list[str]:
    """Return `texts` with `text` in front, once, and no more than a page keeps."""
    return [text, *(one for one in texts if one != text)][:_MOST_TEXTS]


def page_content(
    opened: Opened, probed: Probed | None, texts: Sequence[str], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what the page and the figures are made of, every sentence read anew by the model.

    Args:
        opened: the run.
        probed: of this very checkpoint.
        texts: the user's own sentences.
        notes: what is missing, for the reader.

    """
    from probe.snapshots import FILM, read_film
    from report.content import Found, content
    from report.sentences import like, median_block, own, showcase

    film = read_film(opened.run / FILM)
    metrics = read_curves(opened, probed)
    pen = pen_of(opened)
    selected = probed.results["selected"] if probed else []
    shows = showcase(pen)
    medians = {
        one["question"]: median_block(pen, number, one["question"], one["median"], probed.items if probed else "")
        for number, one in enumerate(selected, 1)
    }
    lab, seeds = sweep_tables(opened.run)
    shown = {name: [*shows.get(like(name), ()), *some] for name, some in medians.items()}
    return content(
        Found(
            run=about(opened),
            sentences=[*([own(pen, i, text)] for i, text in enumerate(texts, 1)), *shows.values(), *medians.values()],
            shown={name: [one["id"] for one in some] for name, some in shown.items()},
            probe=probed.results if probed else None,
            cards=probed.cards if probed else (),
            metrics=metrics,
            film=film,
            lab=lab,
            seeds=seeds,
            notes=[*notes, *(probed.results["warnings"] if probed and opened.is_from_elsewhere else ())],
            resumed=opened.resumed,
        )
    )


def read_curves(opened: Opened, probed: Probed | None) -> Sequence[Mapping[str, Any]]:
    """Return a run's records, none where there are none; ValueError in one line where a page cannot be made of them."""
    from report.content import Found, content
    from report.page import page
    from training.logging import read_records

    path, run = opened.run / "metrics.jsonl", about(opened)
    if not path.exists():
        return ()
    with sound(path, "delete it to go without the curves of training"):
        metrics = read_records(opened.run)
        page(content(Found(run=run, sentences=[], probe=probed.results if probed else None, metrics=metrics)))
    return metrics


def pen_of(opened: Opened) -> Pen:
    """Return the run's model with what is needed to write down what it does with a text."""
    from data.stories.lint import lint
    from data.tokenizer import unknown_id
    from report.sentences import Pen

    return Pen(
        opened.model,
        opened.cut,
        lambda token: opened.tokenizer.decode([token], skip_special_tokens=False),
        unknown_id(opened.tokenizer),
        lambda text: [(note.span, note.clue, note.note) for note in lint(text)],
    )


def about(opened: Opened) -> dict[str, Any]:
    """Return what the run is: its name, step and shape, in what it is no plain Llama, and what it was made with."""
    from model.transformer import n_parameters

    config, origin = opened.model.config, opened.origin
    return {
        "name": origin.name,
        "seed": origin.seed,
        "step": origin.step,
        "max_steps": origin.max_steps,
        **{name: getattr(config, name) for name in ("n_layer", "n_head", "d_model", "context_length")},
        "n_parameters": n_parameters(opened.model),
        "data": None if opened.is_from_elsewhere else opened.data.source,
        "departures": list(origin.departures),
        "environment": _environment(opened.run) if origin.made_with is None else dict(origin.made_with),
        "command": origin.command,
    }


def _environment(run: Path) -> dict[str, Any]:
    """Return what a run was made with, as far as its environment.json says."""
    path = run / "environment.json"
    with sound(path, "delete it, and the page does not say what the run was made with"):
        made = json.loads(path.read_text()) if path.exists() else {}
        made_with = {"python": made.get("python"), "torch": made.get("packages", {}).get("torch")}
        made_with["commit"] = made.get("commit")
    return made_with


def sweep_tables(run: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the tables of the sweep that a run is part of: what a switch changes, and what holds over seeds."""
    from lab.compare import LEGEND, overview
    from probe.seeds import overview as seeds_overview
    from training.run_dir import read_json

    folder, name = run.resolve().parent / "probe", run.resolve().name
    lab_table = seeds_table = None
    if (path := folder / "compare.json").exists():
        with sound(path, f"python eval.py compare={folder.parent} writes it anew"):
            lab = read_json(path)
            if any(name in one["runs"] for one in lab["variants"]):
                header, rows = overview(lab)
                title = "One switch at a time: what each variant changes"
                lab_table = {
                    "title": title,
                    "header": header,
                    "rows": rows,
                    "note": " ".join([*LEGEND, *lab.get("warnings", ())]),
                }
    if (path := folder / "seeds.json").exists():
        with sound(path, f"python eval.py runs={folder.parent} writes it anew"):
            seeds = read_json(path)
            if name in seeds["runs"]:
                header, rows = seeds_overview(seeds)
                title = f"The same settings over training seeds: {', '.join(map(str, seeds['seeds']))}"
                note = "A head is the one that a run's own dev items chose; which index it has says nothing."
                note = " ".join([note, *seeds.get("warnings", ())])
                seeds_table = {"title": title, "header": header, "rows": rows, "note": note}
    return lab_table, seeds_table


def claim_folder(folder: Path) -> FileIO:
    """Keep other processes from writing to a folder of probes, made if need be, until what is returned is closed.

    Raises:
        BlockingIOError: in one line, that another process writes there.
        OSError: it cannot be written.

    """
    from training.run_dir import lock

    folder.mkdir(parents=True, exist_ok=True)
    return lock(folder)


def own_out(out: Path, owner: str) -> None:
    """Note in `out`, made if need be, of which model it holds what is found; OSError that names it where it cannot."""
    from training.run_dir import write_json

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / OWNER, {"model": owner})
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(out)) from None


def claim_or_note(opened: Opened, folder: Path, say: Callable[[str], None] = print) -> FileIO | None:
    """Claim a run's folder of probes; where it cannot be written, for the run is another's, say so and return None.

    What is found of a model from elsewhere has a place of its own: OSError where that cannot be written.
    """
    from training.run_dir import unwritable

    if opened.owner is not None:
        own_out(opened.run, opened.owner)
    wrong = unwritable(opened.run)
    try:
        if wrong is None:
            return claim_folder(folder)
    except PermissionError:  # of another's earlier lock
        wrong = folder
    say(f"note     {wrong} cannot be written: what is found is printed, and nothing is kept of it")
    return None


def write_found(
    folder: Path,
    mark: str,
    files: Mapping[str, str | bytes],
    pictures: Mapping[str, bytes] | None,
    gone: Iterable[str] = (),
) -> None:
    """Write what was found, and its figures, all of it or nothing (`training.checkpoint.write_files`).

    Args:
        folder: made if need be.
        mark: the file that says what all the others are of.
        files: by their paths from `folder`.
        pictures: None where none were asked for; then earlier ones stay as long as `mark` holds what it held.
        gone: earlier files that are taken away.

    """
    from training.checkpoint import write_files

    known, wanted = folder / mark, files[mark]
    is_same = known.is_file() and known.read_bytes() == (wanted.encode() if isinstance(wanted, str) else wanted)
    if pictures is not None or not is_same:
        gone = [*gone, *other_figures(pictures or {})]
    write_files(folder, {**files, **figure_files(pictures or {})}, mark, gone)


def figure_files(pictures: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return figures by the paths at which they stand in probe/."""
    return {f"figures/{name}": content for name, content in pictures.items()}


def other_figures(pictures: Mapping[str, bytes]) -> list[str]:
    """Return the paths of all other figures that there may be from earlier: one of other numbers is worse than none."""
    from report.figures import NAMES

    return [f"figures/{name}" for name in sorted(NAMES - pictures.keys())]


def file_url(path: Path) -> str:
    """Return the address under which a browser opens `path`."""
    return path.resolve().as_uri()


def write_page(opened: Opened, *, figures: bool = False) -> None:
    """Write the page anew from what is known of the run, and figures of it; nothing is probed.

    Whoever calls this has claimed the run's probe/.
    """
    from report.figures import draw_run
    from report.page import page
    from training.checkpoint import write_files

    probed, missing = read_probe(opened)
    content = page_content(opened, probed, read_sound_texts(opened.run), missing)
    pictures = draw_run(content) if figures else {}
    files: dict[str, str | bytes] = {PAGE: page(content), **figure_files(pictures)}
    write_files(opened.run / "probe", files, gone=other_figures(pictures) if figures else ())


def show(path: Path, *, in_browser: bool, sentence: str = "") -> None:
    """Print where the page is and, if that is asked for, open it; say so where no browser is found.

    `sentence` is the id of the one that it opens at; "" for the first.
    """
    import webbrowser

    address = file_url(path) + (f"#{sentence}" if sentence else "")
    print(f"see      {address}", flush=True)
    if in_browser and not webbrowser.open(address):
        print("note     no browser was found: open the file above in one")
