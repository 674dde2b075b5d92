"""python eval.py runs= and compare=: what holds over training seeds, and what one switch changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.open import again, open_run, read_settings, resumed_with, sound
from probe.probing import is_probed, probe_stories
from report.reporting import claim_folder, read_curves, read_probe, write_found, write_page
from training.command_line import one_line_errors, printable
from training.settings import TrainSettings, check_seeds, check_variants, result_settings, saved_settings

if TYPE_CHECKING:
    from lab.compare import LabRun
    from probe.config import ProbeConfig
    from training.settings import EvalConfig

_LEAVE_OUT = "leave the run out of the sweep, or train it anew"


def compare_seeds(runs: str, settings: EvalConfig, config: ProbeConfig) -> None:
    """Probe each run of a sweep that has not been probed yet, print what holds over the seeds and write probe/."""
    from probe.seeds import SeedRun, markdown, over_seeds
    from report.figures import draw_seeds

    with one_line_errors():
        found = ended(runs)
        seeds = check_seeds({path.name: read_settings(path)[1] for path in found})
        claimed = claim_folder(Path(runs) / "probe")
    with claimed:
        probes = {path: probed(path, settings, config) for path in found}
        every = [SeedRun(path.name, seeds[path.name], probes[path], records) for path, records in found.items()]
        with one_line_errors():
            for path, one in zip(found, every, strict=True):
                with sound(path / "probe" / "probe.json", f"{again(path)} writes it anew"):
                    markdown(over_seeds([replace(one, metrics=())]))
                with sound(path / "metrics.jsonl", _LEAVE_OUT):
                    markdown(over_seeds([one]))
            with sound(Path(runs), "its runs' files do not go together"):
                results = over_seeds(every) | {"warnings": resumed_among(found)}
                files = {
                    "seeds.json": json.dumps(results, indent=2) + "\n",
                    "seeds.md": said(results, markdown(results)),
                }
        print(printable(f"\n{files['seeds.md']}"))
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
    from lab.compare import LabRun, by_variant

    with one_line_errors():
        found = ended(runs)
        configs = {path.name: read_settings(path)[1] for path in found}
        variants, standard = check_variants(configs, defaults)
        by_variant(variants)  # before minutes of probing
        claimed = claim_folder(Path(runs) / "probe")
    with claimed:
        every = {}
        for path, records in found.items():
            causal = saved_settings(configs[path.name]).model.is_causal
            probe = probed(path, settings, config) if causal else None
            every[path] = LabRun(path.name, *variants[path.name], records, probe)
        with one_line_errors():
            results = compared(Path(runs), every, standard) | {"warnings": resumed_among(found)}
        written = write_comparison(Path(runs) / "probe", results, every, configs)
        with one_line_errors():
            write_pages(found, settings)
    print(
        f"\nwrote    {', '.join(written)} to {Path(runs) / 'probe'}; tensorboard --logdir {runs} has them as HParams,"
    )
    print("         the page of every run has the table")


def compared(runs: Path, every: Mapping[Path, LabRun], standard: Mapping[str, Any]) -> dict[str, Any]:
    """Return what compare.json holds; ValueError names the first file of a run that it cannot be made of."""
    from lab.compare import compare, markdown, measured

    for path, one in every.items():
        with sound(path / "metrics.jsonl", _LEAVE_OUT):
            measured(replace(one, probe=None))
        with sound(path / "probe" / "probe.json", f"{again(path)} writes it anew"):
            measured(one)
    with sound(runs, "its runs' files do not go together"):
        results = compare(list(every.values()), standard)
        markdown(results)
    return results


def write_comparison(
    folder: Path, results: dict[str, Any], every: Mapping[Path, LabRun], configs: Mapping[str, Any]
) -> list[str]:
    """Print what a comparison has found, write it to `folder`, and return the files' names."""
    from lab.compare import LEGEND, draw, markdown, measured, table_csv
    from training.board import hparams_files
    from training.checkpoint import write_files

    files: dict[str, str | bytes] = {
        "compare.json": json.dumps(results, indent=2) + "\n",
        "compare.md": said(results, markdown(results)),
        "compare.csv": table_csv(results),
    }
    print("", printable(str(files["compare.md"])), *LEGEND, sep="\n")
    try:
        files["compare.png"] = draw(results)
    except ImportError:
        print("note     no figure: it needs matplotlib (pip install matplotlib)")
    values = {
        run.name: {name: value for name, value in measured(run).items() if value is not None} for run in every.values()
    }
    with one_line_errors():
        events = hparams_files(
            {name: (result_settings(saved_settings(configs[name])), measures) for name, measures in values.items()}
        )
        earlier = [str(path.relative_to(folder)) for path in (folder / "tb").rglob("*") if path.is_file()]
        gone = ["compare.png", *earlier]  # a figure of other runs is worse than none
        write_files(folder, files | {f"tb/{name}": content for name, content in events.items()}, "compare.json", gone)
    return list(files)


def resumed_among(runs: Iterable[Path]) -> list[str]:
    """Return a sentence for each time that one of the runs went on with something changed."""
    return [f"{run.name}: {line}" for run in runs for line in resumed_with(run)]


def said(results: Mapping[str, Any], table: str) -> str:
    """Return a table with what is to be known of its runs below."""
    return "\n".join([table, *([""] if results["warnings"] else []), *(f"note: {one}" for one in results["warnings"])])


def of_one(settings: EvalConfig, run: Path) -> EvalConfig:
    """Return the settings for one run of a sweep."""
    return replace(settings, runs=None, compare=None, run=str(run), figures=False)


def write_pages(runs: Iterable[Path], settings: EvalConfig) -> None:
    """Write the page of each run anew, for what is now known of the sweep stands in it; none of a model that cheats."""
    for run in runs:
        opened = open_run(of_one(settings, run))
        if opened.settings.model.is_causal:
            with claim_folder(run / "probe"):
                write_page(opened)


def ended(runs: str) -> dict[Path, list[dict[str, Any]]]:
    """Return the records of each run of a sweep; ValueError or OSError where one cannot be read or has not ended."""
    from training.logging import read_records
    from training.run_dir import check_writable, find_runs

    found = {path: read_records(path) for path in find_runs(runs)}
    for folder in (Path(runs), *found):
        check_writable(folder)
    for path, records in found.items():
        if not any(one.get("whole") for one in records):
            raise ValueError(f"{path} has not ended; go on with: python train.py resume=true out={path}")
    return found


def probed(run: Path, settings: EvalConfig, config: ProbeConfig) -> dict[str, Any]:
    """Return the probe.json of a run of a sweep; it is probed now where that has not been done with these settings."""
    from training.run_dir import read_json

    alone = of_one(settings, run)
    with one_line_errors():
        opened = open_run(alone)
        is_known = is_probed(run, config)
    if not is_known:
        print(printable(f"probing  {run}"), flush=True)
        probe_stories(opened, alone, config, say=lambda lines: None)  # of each run, its files alone
    with one_line_errors():
        read_curves(opened, read_probe(opened)[0])  # what is damaged is said before anything is written
        found: dict[str, Any] = read_json(run / "probe" / "probe.json")
    return found
