"""The modes of eval.py for several models: what holds over seeds, or what the settings that differ change."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from extras.sweeps.sweep import Sweep, SweepRun, by_variant, compare_runs
from extras.sweeps.tables import sweep_markdown
from probe.opened_run import load_run_settings
from probe.results import ProbeResults
from probe.saved import EXTERNAL_RESULTS, check_results_folder, folder_name, results_folder
from settings.command_line import program_command
from settings.errors import UserError, printable
from settings.files import write_files
from settings.train import INFOS, TrainSettings, changed_settings, compose_settings, result_settings, saved_settings
from settings.typed_json import from_json, json_text, to_json
from training.metrics import Metrics, load_metrics
from training.run_dir import find_runs, first_unwritable

# Returns the results of a model, by its name, and tests it if that has not been done; prints by the second argument.
Tested = Callable[[str, Callable[[str], None]], ProbeResults]
_NUMBERED = "Models are numbered as in model=; that they differ in the training seed alone is not known."
_SHAPE = ("model_type", "n_layer", "n_head", "d_model", "vocab_size")  # facts that models of one table share


def compare_sweep(sweep: Path, tested: Tested) -> None:
    """Test the runs of a sweep; print and write the results over its seeds or, if settings differ, their effects."""
    # Errors in the sweep are reported before minutes of probing.
    runs = _finished_runs(sweep)
    configs = {run.name: load_run_settings(run)[1] for run in runs}
    changes, standard = differing_settings(configs, compose_settings())
    by_variant(changes)

    untested = {}
    for run, metrics in runs.items():
        seed, changed = changes[run.name]
        untested[str(run)] = partial(SweepRun, run.name, seed, metrics, changes=changed)
    _compare("seeds", sweep, untested, standard, [], tested)


def compare_several(shapes: Mapping[str, Mapping[str, Any]], out: str | None, tested: Tested) -> None:
    """Test models of one shape; print what holds over them, and write it to `out` (default: a folder in probes/).

    `shapes` are `OpenedModel.shape`s by the name of each model.

    UserError if a model has another shape than the first, or the weights of an earlier one.
    """
    names = list(shapes)
    for number, name in enumerate(names):
        shape = shapes[name]
        for fact in _SHAPE:
            if shape.get(fact) != shapes[names[0]].get(fact):
                raise UserError(f"model={name}: {fact} is not that of {names[0]}; give models of one shape")
        digest = shape.get("sha256")
        for earlier in names[:number]:
            if digest is not None and digest == shapes[earlier].get("sha256"):
                raise UserError(f"model={name}: has the weights of {earlier}, so it would count twice")

    untested = {}
    for number, name in enumerate(names, start=1):
        untested[name] = partial(SweepRun, name, number, Metrics([], [], []))
    root = Path(out) if out else EXTERNAL_RESULTS / folder_name(",".join(shapes))
    check_results_folder(root)
    _compare("models", root, untested, {}, [_NUMBERED], tested)


def _compare(
    units: str,
    root: Path,
    untested: Mapping[str, Callable[..., SweepRun]],
    standard: Mapping[str, Any],
    notes: Sequence[str],
    tested: Tested,
) -> None:
    """Test models, each by its name, which makes a record; print the tables of all, and write them to root/probe.

    `units` are their names.
    """
    with results_folder(root, root / "probe") as folder:
        records = list[SweepRun]()
        for number, (name, record) in enumerate(untested.items(), start=1):
            log = partial(print, f"{number} of {len(untested)}:", flush=True)
            records.append(record(probe=tested(name, log)))

        # The tables show what the files say, with its six digits.
        content = to_json(compare_runs(records, standard, notes, units))
        rounded: Sweep = from_json(Sweep, content, "sweep.json")
        tables = sweep_markdown(rounded)
        print(printable(f"\n{tables}"))
        if folder is not None:
            files = {"sweep.md": tables, "sweep.json": json_text(content)}
            write_files(folder, files, "sweep.json")
            print(f"wrote {', '.join(files)} to {folder}")


def _finished_runs(sweep: Path) -> dict[Path, Metrics]:
    """Return the metrics of each run of a sweep; UserError or OSError if a run cannot be written or is unfinished."""
    runs = {run: load_metrics(run) for run in find_runs(str(sweep))}
    for folder in (sweep, *runs):
        if blocked := first_unwritable(folder):
            raise PermissionError(f"{blocked}: cannot be written; change its permissions")
    for run, metrics in runs.items():
        if not metrics.has_ended(load_run_settings(run)[0].run.max_steps):
            resume = program_command("train", "resume=true", f"out={run}")
            raise UserError(f"{run}: training has not ended; resume it: {resume}")
    return runs


def differing_settings(
    configs: Mapping[str, Any], defaults: TrainSettings
) -> tuple[dict[str, tuple[int, dict[str, Any]]], dict[str, Any]]:
    """Return the seed of each run and its settings that differ from the standard variant, and the standard's values.

    The standard is the first run with the fewest differences from `defaults`, the settings of train.py without
    arguments; `configs` has the content of config.json by run name. Raises UserError if two runs are the same, or if
    runs did not read the same batches in the same order.
    """
    variants: dict[str, dict[str, Any]] = {}
    for run, config in configs.items():
        settings = result_settings(saved_settings(config))
        variants[run] = settings | {"data_fingerprint": config.get("data_fingerprint")}
    for run, later_run in combinations(variants, 2):
        if variants[run] == variants[later_run]:
            raise UserError(f"{run} and {later_run} have the same settings and the same seed; leave out one of them")

    seeds = {run: settings.pop("seed") for run, settings in variants.items()}
    known = result_settings(defaults)
    first = min(variants, key=lambda run: len(changed_settings(known, variants[run])))

    runs: dict[str, tuple[int, dict[str, Any]]] = {}
    standard: dict[str, Any] = {}
    for run, variant in variants.items():
        changes = changed_settings(variants[first], variant)
        for name in changes:
            # All other settings, and the fingerprint of the data, decide what a step reads.
            if name not in INFOS or INFOS[name].orders_batches:
                raise UserError(f"{run}: {name} differs from {first}; compare runs that read the same batches")
        runs[run] = seeds[run], {name: value for name, (_, value) in sorted(changes.items())}
        standard |= {name: value for name, (value, _) in changes.items()}
    return runs, dict(sorted(standard.items()))
