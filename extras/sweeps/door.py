"""The modes of eval.py for several models: what holds over seeds, or what the settings that differ change."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from extras.sweeps.sweep import STANDARD, Sweep, SweepRun, compare_runs, variant_name
from extras.sweeps.tables import sweep_markdown
from probe.opened_run import load_run_settings
from probe.results import ProbeResults
from probe.saved import EXTERNAL_RESULTS, check_results_folder, folder_name, results_folder
from settings.command_line import program_command
from settings.errors import UserError, printable
from settings.files import write_files
from settings.train import INFOS, changed_settings, compose_settings, result_settings
from settings.typed_json import from_json, json_text, to_json
from training.metrics import Metrics, load_metrics
from training.run_dir import find_runs

# Returns the results of a model, by its name, and tests it if that has not been done
Tested = Callable[[str], ProbeResults]
_NUMBERED = "Models are numbered as in model=; that they differ in the training seed alone is not known."
_SHAPE = ("model_type", "n_layer", "n_head", "d_model", "vocab_size")  # facts that models of one table share


def compare_sweep(sweep: Path, tested: Tested) -> None:
    """Test the runs of a sweep; print and write the results over its seeds or, if settings differ, their effects."""
    # Errors in the sweep are reported before minutes of probing.
    metrics = {}
    settings = {}
    for folder in find_runs(str(sweep)):
        of_run, config = load_run_settings(folder)
        metrics[folder.name] = load_metrics(folder)
        if not metrics[folder.name].has_ended(of_run.run.max_steps):
            resume = program_command("train", "resume=true", f"out={folder}")
            raise UserError(f"{folder}: training has not ended; resume it: {resume}")
        settings[folder.name] = result_settings(of_run) | {"data_fingerprint": config.get("data_fingerprint")}
    variants, standard = variants_of(settings)
    runs = {}
    for name, variant in variants.items():
        runs[str(sweep / name)] = SweepRun(name, settings[name]["seed"], metrics[name], variant)
    _compare(runs, sweep, tested, standard)


def compare_models(
    models: Sequence[tuple[str, Mapping[str, Any], Counter[str]]], out: str | None, tested: Tested
) -> None:
    """Test models of one shape; print what holds over them, and write it to `out` (default: a folder in probes/).

    `models` are the name, the `OpenedModel.shape` and checksums of the weights of each. UserError if a model has
    another shape than the first, or the weights of an earlier one.
    """
    first, shape_of_first, _ = models[0]
    runs = dict[str, SweepRun]()
    for number, (name, shape, weights) in enumerate(models):
        for fact in _SHAPE:
            if shape.get(fact) != shape_of_first.get(fact):
                raise UserError(f"model={name}: {fact} is not that of {first}; give models of one shape")
        for earlier, _, others in models[:number]:
            if weights and weights == others:
                raise UserError(f"model={name}: has the weights of {earlier}, so it would count twice")
        runs[name] = SweepRun(name, len(runs) + 1, Metrics([], [], []))
    root = Path(out) if out else EXTERNAL_RESULTS / folder_name(",".join(runs))
    check_results_folder(root)
    _compare(runs, root, tested, {}, [_NUMBERED], "models")


def _compare(
    runs: Mapping[str, SweepRun],
    root: Path,
    tested: Tested,
    standard: Mapping[str, Any],
    notes: Sequence[str] = (),
    units: str = "seeds",
) -> None:
    """Test the models of `runs`, by name; print the tables of all, and write them to root/probe."""
    with results_folder(root, root / "probe") as folder:
        results = []
        for number, name in enumerate(runs, start=1):
            print(printable(f"{number} of {len(runs)}: {name}"), flush=True)
            results.append(tested(name))
        content = to_json(compare_runs(list(runs.values()), results, standard, notes, units))
        # The tables show what the files say, with its six digits.
        tables = sweep_markdown(from_json(Sweep, content, "sweep.json"))
        print(printable(f"\n{tables}"))
        if folder is not None:
            write_files(folder, {"sweep.md": tables, "sweep.json": json_text(content)}, "sweep.json")
            print(f"wrote sweep.md, sweep.json to {folder}")


def variants_of(settings: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the variant of each run, and the standard's value of every setting that a run changes.

    `settings` are those that a result depends on, by run. The standard is the first run with the fewest differences
    from the settings of train.py without arguments. Raises UserError if two runs are the same, if runs did not read the
    same batches in the same order, or if a variant has no seed of the standard.
    """
    for run, later_run in combinations(settings, 2):
        if settings[run] == settings[later_run]:
            raise UserError(f"{run} and {later_run} have the same settings and the same seed; leave out one of them")
    without_seed = {run: {**values, "seed": None} for run, values in settings.items()}
    defaults = result_settings(compose_settings())
    first = min(settings, key=lambda run: len(changed_settings(defaults, without_seed[run])))

    variants = {}
    standard: dict[str, Any] = {}
    seeds: dict[str, set[int]] = {STANDARD: set()}
    for run, values in without_seed.items():
        changes = {}
        for name, (old, new) in changed_settings(without_seed[first], values).items():
            # All other settings, and the fingerprint of the data, decide what a step reads.
            if name not in INFOS or INFOS[name].orders_batches:
                raise UserError(f"{run}: {name} differs from {first}; compare runs that read the same batches")
            standard[name] = old
            changes[name] = new
        variants[run] = variant_name(dict(sorted(changes.items())))
        seeds.setdefault(variants[run], set()).add(settings[run]["seed"])
    for variant, of_variant in seeds.items():
        if of_variant.isdisjoint(seeds[STANDARD]):
            raise UserError(f"{variant} shares no seed with the standard; train both with the same seeds")
    return variants, dict(sorted(standard.items()))
