"""python eval.py runs= and compare=: what holds over training seeds, and what one switch changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs import TrainSettings, check_seeds, check_variants, of_result, one_line_errors, typed_saved
from probe.commands.opened import open_run
from probe.commands.probing import is_probed, probe_stories
from probe.commands.reporting import write_found, write_page

if TYPE_CHECKING:
    from probe.config import ProbeConfig
    from run.config import EvalConfig


def compare_seeds(runs: str, settings: EvalConfig, config: ProbeConfig) -> None:
    """Probe each run of a sweep that has not been probed yet, print what holds over the seeds and write probe/."""
    from probe.report.figures import draw_seeds
    from probe.seeds import SeedRun, markdown, over_seeds
    from run.directory import read_json

    with one_line_errors():
        found = ended(runs)
        seeds = check_seeds({path.name: read_json(path / "config.json") for path in found})
    probes = {path.name: probed(path, settings, config) for path in found}
    results = over_seeds(
        [SeedRun(path.name, seeds[path.name], probes[path.name], records) for path, records in found.items()]
    )
    files = {"seeds.json": json.dumps(results, indent=2) + "\n", "seeds.md": markdown(results)}
    print(f"\n{files['seeds.md']}")
    with one_line_errors():
        by_name = {path.name: records for path, records in found.items()}
        pictures = draw_seeds(results, by_name) if settings.figures else None
        write_found(Path(runs) / "probe", "seeds.json", files, pictures)
        write_pages(found, settings)
    written = [*files, *(f"figures/{name}" for name in pictures or ())]
    print(f"wrote    {', '.join(written)} to {Path(runs) / 'probe'}; the page of every run has the first table")


def compare_variants(runs: str, settings: EvalConfig, config: ProbeConfig, defaults: TrainSettings) -> None:
    """Probe each run of a sweep that has not been probed yet, print what each variant changes and write probe/.

    `defaults`: what train.py does without being told anything.
    """
    from probe.lab.compare import LEGEND, LabRun, by_variant, compare, draw, markdown, measured, table_csv
    from run.directory import read_json
    from run.files import write_set
    from run.logging import hparams_files

    with one_line_errors():
        found = ended(runs)
        configs = {path.name: read_json(path / "config.json") for path in found}
        variants, standard = check_variants(configs, defaults)
        by_variant(variants)  # before minutes of probing
    every = []
    for path, records in found.items():
        causal = typed_saved(configs[path.name]).model.is_causal
        probe = probed(path, settings, config) if causal else None
        every.append(LabRun(path.name, *variants[path.name], records, probe))
    results = compare(every, standard)
    files: dict[str, str | bytes] = {
        "compare.json": json.dumps(results, indent=2) + "\n",
        "compare.md": markdown(results),
        "compare.csv": table_csv(results),
    }
    print("", markdown(results), *LEGEND, sep="\n")
    folder = Path(runs) / "probe"
    try:
        files["compare.png"] = draw(results)
    except ImportError:
        print("note     no figure: it needs matplotlib (pip install matplotlib)")
    with one_line_errors():
        values = {
            run.name: {name: value for name, value in measured(run).items() if value is not None} for run in every
        }
        events = hparams_files(
            {run.name: (of_result(typed_saved(configs[run.name])), values[run.name]) for run in every}
        )
        earlier = [str(path.relative_to(folder)) for path in (folder / "tb").rglob("*") if path.is_file()]
        gone = ["compare.png", *earlier]  # a figure of other runs is worse than none
        write_set(folder, files | {f"tb/{name}": content for name, content in events.items()}, "compare.json", gone)
        write_pages(found, settings)
    print(f"\nwrote    {', '.join(files)} to {folder}; tensorboard --logdir {runs} has them as HParams,")
    print("         the page of every run has the table")


def of_one(settings: EvalConfig, run: Path) -> EvalConfig:
    """Return the settings for one run of a sweep."""
    return replace(settings, runs=None, compare=None, run=str(run), figures=False)


def write_pages(runs: Iterable[Path], settings: EvalConfig) -> None:
    """Write the page of each run anew, for what is now known of the sweep stands in it; none of a model that cheats."""
    for run in runs:
        opened = open_run(of_one(settings, run))
        if opened.settings.model.is_causal:
            write_page(opened)


def ended(runs: str) -> dict[Path, list[dict[str, Any]]]:
    """Return the records of each run of a sweep; ValueError or OSError where one cannot be read or has not ended."""
    from run.directory import check_writable, find_runs
    from run.logging import read_records

    found = {path: read_records(path) for path in find_runs(runs)}
    for folder in (Path(runs), *found):
        check_writable(folder)
    for path, records in found.items():
        if not any(one.get("whole") for one in records):
            raise ValueError(f"{path} has not ended; go on with: python train.py resume=true out={path}")
    return found


def probed(run: Path, settings: EvalConfig, config: ProbeConfig) -> dict[str, Any]:
    """Return the probe.json of a run of a sweep; it is probed now where that has not been done with these settings."""
    from run.directory import read_json

    alone = of_one(settings, run)
    with one_line_errors():
        opened = None if is_probed(run, config) else open_run(alone)
    if opened:
        print(f"probing  {run}", flush=True)
        probe_stories(opened, alone, config, say=lambda lines: None)  # of each run, its files alone
    with one_line_errors():
        found: dict[str, Any] = read_json(run / "probe" / "probe.json")
    return found
