"""The modes of eval.py for the runs of a sweep: what holds over training seeds, and what one switch changes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from data.errors import printable
from lab import compare as lab
from probe import seeds
from probe.config import ProbeConfig
from probe.open import open_run, read_resumes, read_settings
from report.commands import EvalSettings, probe_heads
from report.content import command_in_this_folder, jsonable
from report.figures import draw_seeds
from report.results import read_results, split_results, write_with_figures
from training.device import choose_device
from training.files import lock, read_json
from training.logging import read_records
from training.run_dir import find_runs, first_unwritable
from training.settings import Precision, TrainSettings, check_seeds, check_variants, saved_settings

Pictures = Mapping[str, bytes]  # PNG by file name


def compare_seeds(settings: EvalSettings, config: ProbeConfig) -> None:
    """Tests the runs of a sweep over seeds and prints what holds over all of them."""
    sweep = Path(settings.runs or "")
    runs = finished_runs(sweep)
    seed_of = check_seeds({run.name: read_settings(run)[1] for run in runs})
    (sweep / "probe").mkdir(exist_ok=True)
    with lock(sweep / "probe"):
        probes = {run: probe_results(run, settings, config) for run in runs}
        records = [seeds.SeedRun(run.name, seed_of[run.name], probes[run], runs[run]) for run in runs]
        results = jsonable(seeds.over_seeds(records) | {"warnings": resume_notes(runs)})
        pictures = draw_seeds(results, [record.metrics for record in records]) if settings.figures else {}
        write_summary(sweep / "probe", "seeds", results, seeds.markdown(results), {}, pictures)


def compare_variants(settings: EvalSettings, config: ProbeConfig, defaults: TrainSettings) -> None:
    """Tests the runs of a sweep over variants and seeds and prints what each variant changes.

    `defaults` are the settings of train.py without arguments; the variant closest to them is the standard.
    """
    sweep = Path(settings.compare or "")
    runs = finished_runs(sweep)
    configs = {run.name: read_settings(run)[1] for run in runs}
    variants, standard = check_variants(configs, defaults)
    lab.by_variant(variants)  # an error in the sweep is reported before minutes of probing
    (sweep / "probe").mkdir(exist_ok=True)
    with lock(sweep / "probe"):
        records = []
        for run, metrics in runs.items():
            is_causal = saved_settings(configs[run.name]).model.is_causal
            probe = probe_results(run, settings, config) if is_causal else None
            records.append(lab.LabRun(run.name, *variants[run.name], metrics, probe))
        results = jsonable(lab.compare(records, standard) | {"warnings": resume_notes(runs)})
        pictures = {"compare.png": lab.draw(results)} if settings.figures else {}
        table = "\n".join([lab.markdown(results), *lab.LEGEND])
        files = {"compare.csv": lab.table_csv(results)}
        write_summary(sweep / "probe", "compare", results, table, files, pictures)


def write_summary(
    folder: Path, name: str, results: Mapping[str, Any], table: str, files: Mapping[str, str], pictures: Pictures
) -> None:
    """Prints the table of a sweep and writes it as Markdown, with the results as JSON."""
    lines = "\n".join([table, *(f"note: {warning}" for warning in results["warnings"])]) + "\n"
    print(printable(f"\n{lines}"))
    written = {f"{name}.json": json.dumps(results, indent=2) + "\n", f"{name}.md": lines, **files}
    write_with_figures(folder, written, f"{name}.json", pictures)
    print(f"wrote {', '.join(written)} to {folder}")


def finished_runs(sweep: Path) -> dict[Path, list[dict[str, Any]]]:
    """Returns the metrics of each run of a sweep; ValueError or OSError if a run cannot be written or is unfinished."""
    runs = {run: read_records(run) for run in find_runs(str(sweep))}
    for folder in (sweep, *runs):
        if blocked := first_unwritable(folder):
            raise PermissionError(f"{blocked}: cannot be written; change its permissions")
    for run, metrics in runs.items():
        if not any(record.get("whole") for record in metrics):
            resume = command_in_this_folder("train.py", "resume=true", f"out={run}")
            raise ValueError(f"{run}: training has not ended; resume it: {resume}")
    return runs


def probe_results(run: Path, settings: EvalSettings, config: ProbeConfig) -> dict[str, Any]:
    """Returns the probe.json of a run; the run is tested now if it has not been with these settings."""
    opened = open_run(run, choose_device(settings.device, Precision.float32, settings.threads).device)
    results, _ = read_results(opened)
    if results is None or results["settings"] != asdict(config):
        print(printable(f"probing {run}"), flush=True)
        probe_heads(opened, replace(settings, runs=None, compare=None, figures=False), config, lambda lines: None)
        results = split_results(read_json(run / "probe" / "probe.json"))
    return results


def resume_notes(runs: Mapping[Path, Any]) -> list[str]:
    """Returns a sentence for each time that a run was resumed with other settings."""
    return [f"{run.name}: {sentence}" for run in runs for sentence in read_resumes(run)]
