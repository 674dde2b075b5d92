"""The modes of eval.py for the runs of a sweep: what holds over training seeds, and what one switch changes."""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from antecedent_lab.api import affordable
from antecedent_lab.commands import probe_heads
from antecedent_lab.eval_settings import EvalSettings
from antecedent_lab.opened import load_resumes, load_run_settings, open_run
from antecedent_lab.progress import time_left
from antecedent_lab.saved import read_results
from data.errors import UserError, printable
from data.typed_json import from_json, to_json
from lab.compare import Comparison, VariantRun, by_variant, compare_runs
from lab.seeds import SeedRun, SeedsResult, over_seeds
from probe.config import ProbeConfig
from probe.results import ProbeResults
from report.sweep_tables import LEGEND, comparison_csv, comparison_markdown, seeds_markdown
from training.command_line import program_command
from training.device import choose_device
from training.files import lock, write_files
from training.metrics import Metrics, load_metrics
from training.run_dir import find_runs, first_unwritable
from training.settings import Precision, TrainSettings, check_seeds, check_variants, saved_settings


def compare_seeds(settings: EvalSettings, config: ProbeConfig) -> None:
    """Test the runs of a sweep over seeds; print and write what holds over all of them."""
    sweep = Path(settings.runs or "")
    runs = _finished_runs(sweep)
    seeds = check_seeds({run.name: load_run_settings(run)[1] for run in runs})
    (sweep / "probe").mkdir(exist_ok=True)
    with closing(lock(sweep / "probe")):
        records = []
        start = time.monotonic()
        for number, (run, metrics) in enumerate(runs.items()):
            count = f"{number + 1} of {len(runs)}{time_left(start, number / len(runs))}"
            probe = _probe_results(run, settings, config, count)
            records.append(SeedRun(run.name, seeds[run.name], probe, metrics))

        # The table shows what the file says, with its six digits.
        written = to_json(over_seeds(records, _resume_notes(runs)))
        results: SeedsResult = from_json(SeedsResult, written, "seeds.json")
        _write(sweep / "probe", "seeds", results, seeds_markdown(results), {})


def compare_variants(settings: EvalSettings, config: ProbeConfig, defaults: TrainSettings) -> None:
    """Test the runs of a sweep over variants and seeds; print and write what each variant changes.

    `defaults` are the settings of train.py without arguments; the variant closest to them is the standard.
    """
    sweep = Path(settings.compare or "")
    runs = _finished_runs(sweep)
    configs = {run.name: load_run_settings(run)[1] for run in runs}
    variants, standard = check_variants(configs, defaults)
    by_variant(variants)  # an error in the sweep is reported before minutes of probing
    (sweep / "probe").mkdir(exist_ok=True)
    with closing(lock(sweep / "probe")):
        records = []
        start = time.monotonic()
        for number, (run, metrics) in enumerate(runs.items()):
            is_causal = saved_settings(configs[run.name]).model.is_causal
            count = f"{number + 1} of {len(runs)}{time_left(start, number / len(runs))}"
            probe = _probe_results(run, settings, config, count) if is_causal else None
            seed, changes = variants[run.name]
            records.append(VariantRun(run.name, seed, changes, metrics, probe))

        # The tables show what the file says, with its six digits.
        written = to_json(compare_runs(records, standard, _resume_notes(runs)))
        results: Comparison = from_json(Comparison, written, "compare.json")
        table = "\n".join([comparison_markdown(results), *LEGEND])
        _write(sweep / "probe", "compare", results, table, {"compare.csv": comparison_csv(results)})


def _write(folder: Path, name: str, results: SeedsResult | Comparison, table: str, others: Mapping[str, str]) -> None:
    """Print the table of a sweep and write it as Markdown, with the results as JSON."""
    lines = "\n".join([table, *(f"note: {warning}" for warning in results.warnings)]) + "\n"
    print(printable(f"\n{lines}"))
    texts = {f"{name}.json": json.dumps(to_json(results), indent=2) + "\n", f"{name}.md": lines, **others}
    write_files(folder, texts, f"{name}.json")
    print(f"wrote {', '.join(texts)} to {folder}")


def _finished_runs(sweep: Path) -> dict[Path, Metrics]:
    """Return the metrics of each run of a sweep; UserError or OSError if a run cannot be written or is unfinished."""
    runs = {run: load_metrics(run) for run in find_runs(str(sweep))}

    # Before minutes of probing: can the results be written, and has every run ended?
    for folder in (sweep, *runs):
        if blocked := first_unwritable(folder):
            raise PermissionError(f"{blocked}: cannot be written; change its permissions")
    for run, metrics in runs.items():
        if not metrics.has_ended:
            resume = program_command("train", "resume=true", f"out={run}")
            raise UserError(f"{run}: training has not ended; resume it: {resume}")
    return runs


def _probe_results(run: Path, settings: EvalSettings, config: ProbeConfig, count: str) -> ProbeResults:
    """Return the probe.json of a run; the run is tested now if it has not been with these settings.

    `count` says which of the runs it is, for the line that is printed then.
    """
    opened = open_run(run, choose_device(settings.device, Precision.float32, settings.threads).device)
    results, _ = read_results(opened)
    if results is None or results.settings != affordable(config, opened):
        print(printable(f"probing {run} ({count})"), flush=True)
        probe_heads(opened, replace(settings, runs=None, compare=None), config, lambda lines: None)
        results, _ = read_results(opened)
        assert results is not None
    return results


def _resume_notes(runs: Iterable[Path]) -> list[str]:
    """Return a sentence for each time that a run was resumed with other settings."""
    return [f"{run.name}: {sentence}" for run in runs for sentence in load_resumes(run)]
