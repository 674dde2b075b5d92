"""python eval.py: choose heads on dev, test them on test, and write down what was found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs import one_line_errors
from probe.commands.opened import Opened, load_data

if TYPE_CHECKING:
    from probe.config import ProbeConfig
    from probe.study import Reading
    from run.config import EvalConfig

SCHEMA_VERSION = 5  # of probe.json


def probe_stories(
    opened: Opened, settings: EvalConfig, config: ProbeConfig, say: Callable[[str], None] = print
) -> None:
    """Choose heads on dev, test them on test, say the tables and write probe/."""
    from data.corpus import load_split
    from data.links import link_items
    from data.stories import GENERATOR_VERSION
    from data.stories.leakage import leakage
    from data.tokenizer import end_id
    from probe.showcase import SHOWCASE, Reader, cells
    from probe.study import study

    with one_line_errors():
        corpus = load_data(opened, settings)
        end = end_id(opened.tokenizer)
        dev, test = (link_items(load_split(corpus, name), opened.tokenizer, end) for name in ("dev", "test"))
    model = opened.model
    untrained = [opened.untrained(config.seed + i) for i in range(config.n_untrained)]
    with one_line_errors():
        results, readings = study(model, untrained, dev, test, config, under_way)
    under_way("")
    heads = {one["question"]: (one["layer"], one["head"]) for one in results["selected"]}
    reader = Reader(model, opened.cut, opened.tokenizer.id_to_token)
    results["showcase"] = {
        name: cells(reader, asked, heads[name]) for name, (_, asked) in SHOWCASE.items() if name in heads
    }
    about = {
        "schema_version": SCHEMA_VERSION,
        "model": {"run": str(opened.run), "step": opened.step, **asdict(opened.settings.model)},
        "data": {
            "generator_version": GENERATOR_VERSION,
            "fingerprint": corpus.fingerprint,
            "leakage": leakage(load_split(corpus, "train"), load_split(corpus, "test")),
        },
        "settings": asdict(config),
        "warnings": [],
    }
    say("\n".join(printed(results)))
    with one_line_errors():
        written = write_probe(opened, about | results, readings)
    say(f"\nwrote    {', '.join(written)} to {opened.run / 'probe'}")


def under_way(what: str) -> None:
    """Show on a terminal, and there alone, what is being asked; "" takes it away."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'probing {what} ...' if what else ''}\033[K")
        sys.stderr.flush()


def printed(results: dict[str, Any]) -> list[str]:
    """Return the lines that a person reads of a probe."""
    from probe.report.tables import cell_lines, table
    from probe.showcase import SHOWCASE

    lines = table(results)
    for question, shown in results["showcase"].items():
        title, _ = SHOWCASE[question]
        lines += ["", title, *cell_lines(shown)]
    return lines


def write_probe(opened: Opened, results: dict[str, Any], readings: dict[str, Reading]) -> list[str]:
    """Write probe.json, the tables and a claim card for each question into the run; return the files' names."""
    from probe.claim import claim_card, claim_markdown
    from probe.report.tables import heads_csv, items_jsonl
    from probe.study import HEADLINE
    from probe.verdict import finite
    from run.directory import write_files

    model = {"step": opened.step, **asdict(opened.settings.model)}
    cards = [claim_card(one, model, HEADLINE) for one in results["selected"] if HEADLINE in one["test"]]
    files = {
        "probe.json": json.dumps(finite(results), indent=2, allow_nan=False) + "\n",
        "claims.json": json.dumps(finite(cards), indent=2, allow_nan=False) + "\n",
        "claims.md": "\n\n".join(f"## {one['question']}\n\n{claim_markdown(one)}" for one in cards),
        "heads.csv": heads_csv(readings),
        "items.jsonl": items_jsonl(results, readings["test"]),
    }
    write_files(opened.run / "probe", files)
    return list(files)


def is_probed(run: Path, config: ProbeConfig) -> bool:
    """Whether a run's probe.json is what probing its best checkpoint with these settings would write again."""
    from run.checkpoint import read_manifest
    from run.directory import read_json

    path = run / "probe" / "probe.json"
    found = read_json(path) if path.exists() else {}
    try:
        step, data = found["model"]["step"], found["data"]["fingerprint"]
        known = found["schema_version"], found["settings"], data
    except (KeyError, TypeError):
        return False  # none, or none that can be read: it is written anew
    best = [one["step"] for one in read_manifest(run / "checkpoints") if one["best"]]
    wanted = SCHEMA_VERSION, asdict(config), read_json(run / "config.json").get("data_fingerprint")
    return step in best and known == wanted
