"""python eval.py: choose heads on dev, test them on test, and write down what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from probe.open import SCHEMA_VERSION, Opened, load_data
from report.reporting import PAGE, Probed, claim_or_note, page_content, read_sound_texts, write_found
from training.command_line import one_line_errors, printable

if TYPE_CHECKING:
    from data.corpus import Corpus
    from data.links import LinkItem
    from probe.config import ProbeConfig
    from probe.study import Reading
    from training.settings import EvalConfig


@dataclass(frozen=True, slots=True)
class Paint:
    """What a terminal that has colour can show."""

    width: int  # characters
    every_colour: bool  # 24-bit; else 256


def paint_of(stream: TextIO, environ: Mapping[str, str]) -> Paint | None:
    """Return what `stream` can show; None where it is no terminal or wants no colour."""
    from shutil import get_terminal_size

    from report.terminal import has_colour, has_every_colour

    return Paint(get_terminal_size().columns, has_every_colour(environ)) if has_colour(stream, environ) else None


def probe_stories(
    opened: Opened,
    settings: EvalConfig,
    config: ProbeConfig,
    say: Callable[[str], None] = print,
    paint: Paint | None = None,
) -> bool:
    """Choose heads on dev, test them on test, say the tables and write probe/, the page among its files.

    `paint`: of a terminal with colour, for a map of the heads. Returns whether probe/ could be written.
    """
    from data.corpus import load_rows
    from data.links import link_items
    from probe.open_model import check_items

    with one_line_errors():
        texts = read_sound_texts(opened.run)
        page_content(opened, None, texts)  # whatever it takes and is damaged is said at once
        corpus = load_data(opened, settings)
        rows = [load_rows(corpus, name) for name in ("dev", "test")]
        dev, test = (link_items(some, opened.tokenizer, opened.end) for some in rows)
        warnings = list(opened.resumed)
        if opened.is_from_elsewhere:
            n_payoffs = sum(link["payoff"] is not None for some in rows for row in some for link in row["links"])
            warnings += check_items(opened, [*dev, *test], n_payoffs)
        claimed = claim_or_note(opened, opened.run / "probe", say)
    with claimed or nullcontext():
        results, readings = studied(opened, dev, test, config)
        results = provenance(opened, corpus, config) | {"warnings": warnings} | results
        notes = [f"note     {line}" for line in warnings if line not in opened.resumed]  # those stand on top
        say("\n".join([*printed(results, paint), *([""] if notes else []), *map(printable, notes)]))
        if claimed is not None:
            with one_line_errors():
                written = write_probe(opened, results, readings, texts, figures=settings.figures)
            say(printable(f"\nwrote    {', '.join(written)} to {opened.run / 'probe'}"))
    return claimed is not None


def studied(
    opened: Opened, dev: Sequence[LinkItem], test: Sequence[LinkItem], config: ProbeConfig
) -> tuple[dict[str, Any], dict[str, Reading]]:
    """Return what the probe finds, the showcase of the chosen heads among it, and what it has read."""
    from model.observe import TransformerView
    from probe.sentences import SHOWCASE, Reader, cells
    from probe.study import study

    untrained = (TransformerView(opened.untrained(config.seed + i)) for i in range(config.n_untrained))
    with one_line_errors():
        try:
            results, readings = study(TransformerView(opened.model), untrained, dev, test, config, under_way)
        finally:
            under_way("")
    heads = {one["question"]: (one["layer"], one["head"]) for one in results["selected"]}
    reader = Reader(opened.model, opened.cut, opened.word_of)
    results["showcase"] = {
        name: cells(reader, asked, heads[name]) for name, (_, asked) in SHOWCASE.items() if name in heads
    }
    return results, readings


def provenance(opened: Opened, corpus: Corpus, config: ProbeConfig) -> dict[str, Any]:
    """Return what probe.json says of where its numbers come from: model, data and settings."""
    from data.corpus import load_rows
    from data.stories import GENERATOR_VERSION
    from data.stories.leakage import leakage

    leaked = None  # what a model from elsewhere has read is not known
    if not opened.is_from_elsewhere:
        train, test = load_rows(corpus, "train", ["text"]), load_rows(corpus, "test", ["text", "holdout", "links"])
        leaked = leakage(train, test)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {"run": opened.origin.source, "step": opened.step, **opened.origin.shape},
        "data": {"generator_version": GENERATOR_VERSION, "fingerprint": corpus.fingerprint, "leakage": leaked},
        "settings": asdict(config),
    }


def under_way(what: str) -> None:
    """Show on a terminal, and there alone, what is being asked; "" takes it away."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'probing {what} ...' if what else ''}\033[K")
        sys.stderr.flush()


def printed(results: dict[str, Any], paint: Paint | None) -> list[str]:
    """Return the lines that a person reads of a probe."""
    from probe.sentences import SHOWCASE
    from report.tables import cell_lines, table

    lines = table(results, head_map(results["selected"][0], paint) if paint and results["selected"] else ())
    for question, shown in results["showcase"].items():
        title, _ = SHOWCASE[question]
        lines += ["", title, *cell_lines(shown)]
    return lines


def head_map(one: dict[str, Any], paint: Paint) -> list[str]:
    """Return the map of all heads for one question, in characters."""
    from probe.verdict import MAX_P, corrected_p
    from report.terminal import heat_map

    lines = heat_map(
        one["heads"]["accuracy"],
        [[p < MAX_P for p in row] for row in corrected_p(one["heads"])],
        title=f"Sel@1 of every head, {one['question']}",
        chosen=(one["layer"], one["head"]),
        width=paint.width,
        every_colour=paint.every_colour,
    )
    return ["", *lines]


def write_probe(
    opened: Opened, results: dict[str, Any], readings: dict[str, Reading], texts: Sequence[str], *, figures: bool
) -> list[str]:
    """Write probe.json, the tables, a claim card for each question and the page; return the files' names."""
    from probe.claim import claim_card, claim_markdown
    from probe.study import HEADLINE
    from probe.verdict import finite
    from report.figures import draw_run
    from report.page import page
    from report.tables import heads_csv, items_jsonl
    from training.board import earlier_scores, probe_scores

    model = {**({} if opened.is_from_elsewhere else {"step": opened.step}), **opened.origin.shape}
    results = finite(results)
    cards = finite([claim_card(one, model, HEADLINE) for one in results["selected"] if HEADLINE in one["test"]])
    files = {
        "probe.json": json.dumps(results, indent=2, allow_nan=False) + "\n",
        "claims.json": json.dumps(cards, indent=2, allow_nan=False) + "\n",
        "claims.md": "\n\n".join(f"## {one['question']}\n\n{claim_markdown(one)}" for one in cards),
        "heads.csv": heads_csv(readings),
        "items.jsonl": items_jsonl(results, readings["test"]),
    }
    content = page_content(opened, Probed(results, cards, files["items.jsonl"]), texts)
    files[PAGE] = page(content)
    pictures = draw_run(content) if figures else None
    events, scalars = probe_scores(opened.run, opened.step, scores_of(results))
    earlier = [f"../tb/{name}" for name in earlier_scores(opened.run) if name != events]
    write_found(opened.run / "probe", "probe.json", {**files, f"../tb/{events}": scalars}, pictures, earlier)
    return [*files, *(f"figures/{name}" for name in pictures or ())]


def scores_of(results: dict[str, Any]) -> dict[str, float]:
    """Return what TensorBoard shows of a probe: the scores of each question's head on the headline, and its T."""
    from probe.study import HEADLINE
    from training.board import PROBE_SCORES

    found: dict[str, float] = {}
    for one in results["selected"]:
        tested, causal = one["test"][HEADLINE], one["causal"] or {}
        values = (tested["accuracy"], tested["block_accuracy"], causal.get("attention_swap"))
        named = zip(PROBE_SCORES, values, strict=True)
        found |= {f"{name} {one['question']}": value for name, value in named if value is not None}
    return found


def is_probed(run: Path, config: ProbeConfig) -> bool:
    """Whether a run's probe.json is what probing its best checkpoint with these settings would write again."""
    from training.checkpoint import read_manifest
    from training.run_dir import read_json

    path = run / "probe" / "probe.json"
    try:
        found = read_json(path) if path.exists() else {}
        step, data = found["model"]["step"], found["data"]["fingerprint"]
        known = found["schema_version"], found["settings"], data
    except (ValueError, KeyError, TypeError):
        return False  # none, or none that can be read: it is written anew
    best = [one["step"] for one in read_manifest(run / "checkpoints") if one["best"]]
    wanted = SCHEMA_VERSION, asdict(config), read_json(run / "config.json").get("data_fingerprint")
    return step in best and known == wanted
