"""The probe/ folder of a run or an external model: locked, read, and written as a whole."""

import json
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probe.open import OWNER, OpenedModel, readable
from probe.snapshots import HISTORY_FILE, read_history
from report.content import eval_command, page_content, training_content
from report.figures import FIGURES
from report.next_pronoun import is_next_pronoun
from training.files import lock, write_files, write_json
from training.logging import read_records
from training.run_dir import first_unwritable

SCHEMA_VERSION = 10  # version of probe.json
PAGE = "report.html"
TEXTS = "sentences.json"  # the user's sentences, newest first


@contextmanager
def results_folder(
    opened: OpenedModel, log: Callable[[str], None] = print, subfolder: str = ""
) -> Iterator[Path | None]:
    """Yields the locked folder for results; None, after a note, if a run of another user cannot be written.

    Raises BlockingIOError if another process writes there.
    """
    folder = opened.folder / "probe" / subfolder
    if opened.owner is not None:
        opened.folder.mkdir(parents=True, exist_ok=True)
    blocked = first_unwritable(opened.folder)
    if blocked is not None:
        log(f"note: {blocked} cannot be written, so the results are only printed")
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        yield folder
        if opened.owner is not None:
            write_json(opened.folder / OWNER, {"model": opened.owner})


def read_results(opened: OpenedModel) -> tuple[dict[str, Any] | None, list[str]]:
    """Returns the probe.json of this checkpoint, and a note for the page if there is none; ValueError if damaged."""
    path, command = opened.folder / "probe" / "probe.json", eval_command(opened)
    if not opened.is_causal:
        return None, []
    if not path.exists():
        return None, [f"The heads have not been tested yet: {command}"]
    with readable(path, f"write it again: {command}"):
        results = split_results(json.loads(path.read_text()))
        model, data = results["model"], results["data"]
        tested = (results["schema_version"], model["step"], data["fingerprint"], model.get("sha256"))
        is_current = tested == (SCHEMA_VERSION, opened.step, opened.data_fingerprint, opened.shape.get("sha256"))
        if is_current:
            page_content(opened, results)
    if not is_current:
        return None, [f"The last probe tested another checkpoint or is of another version; probe again: {command}"]
    return results, []


def file_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns results as probe.json has them: the entries about the next pronoun are the first of `selected`."""
    content = {name: value for name, value in results.items() if name != "next_pronoun"}
    return content | {"selected": [*results.get("next_pronoun", ()), *results["selected"]]}


def split_results(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of probe.json with the entries about the next pronoun under `next_pronoun`."""
    selected = content["selected"]
    is_next = [is_next_pronoun(entry) for entry in selected]
    first = [entry for entry, chosen in zip(selected, is_next, strict=True) if chosen]
    others = [entry for entry, chosen in zip(selected, is_next, strict=True) if not chosen]
    return {**content, "selected": others, "next_pronoun": first}


def read_texts(run: Path) -> list[str]:
    """Returns the user's sentences, newest first; none, with a warning, if their file is damaged."""
    path = run / "probe" / TEXTS
    try:
        with readable(path, "delete it"):
            texts = json.loads(path.read_text()) if path.exists() else []
            if not isinstance(texts, list):
                raise ValueError("not a list")
            "".join(texts).encode()  # TypeError for other values, UnicodeEncodeError for lone surrogates
    except ValueError as error:
        print(f"warning: {error}", file=sys.stderr)
        return []
    return texts


def training_records(opened: OpenedModel) -> dict[str, Any]:
    """Returns the metrics and snapshots of a run that the page shows; ValueError names a damaged file."""
    if opened.is_external:
        return {}
    path, metrics = opened.folder / "metrics.jsonl", []
    if path.exists():
        with readable(path, "delete it; the page will lack the curves of training"):
            metrics = read_records(opened.folder)
            training_content(metrics, None)
    return {"metrics": metrics, "snapshots": read_history(opened.folder / HISTORY_FILE)}


def show_page(opened: OpenedModel, *, in_browser: bool, sentence: str = "") -> None:
    """Prints the address of the page and, if wanted, opens it at a sentence."""
    address = (opened.folder / "probe" / PAGE).resolve().as_uri() + (f"#{sentence}" if sentence else "")
    print(f"\nreport {address}", flush=True)
    if in_browser and not webbrowser.open(address):
        print("note: no browser found; open the address above in one")


def write_with_figures(
    folder: Path, files: Mapping[str, str | bytes], marker: str, pictures: Mapping[str, bytes]
) -> None:
    """Writes a set of files and figures, all or nothing; figures of earlier results are removed."""
    named = {f"figures/{name}": content for name, content in pictures.items()}
    obsolete = [f"figures/{name}" for name in FIGURES if name not in pictures]
    write_files(folder, {**files, **named}, marker, obsolete)
