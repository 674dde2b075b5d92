"""Train and compare all attention variants. Writes docs/results/lab.{json,md,png}.

Each variant changes one switch of the model (configs/variant/). Two runs train at a time, one thread each.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, listed, row_from, row_table, run_script, start_benchmark, write_page
from data.errors import UserError
from lab.compare import MEASURES
from probe.results import Estimate
from probe.statistics import MIN_SEEDS


@dataclass
class _LabOptions:
    """python -m benchmarks.lab [seeds=1,2,3,4,5]."""

    seeds: str = "1,2,3,4,5"


@dataclass(frozen=True)
class _VariantResult:
    """One variant, means over seeds (None: not measured), and the sentence about it."""

    name: str
    n_seeds: int
    n_supported: int
    n_tested: int
    gap: Estimate | None
    resolved_share: Estimate | None
    resolved_share_headline: Estimate | None
    accuracy: Estimate | None
    block_accuracy: Estimate | None
    entropy: Estimate | None
    gradient_norm: Estimate | None
    asymmetry: Estimate | None
    different: list[str]  # measures that differ from the standard
    sentence: str

    @property
    def supported(self) -> str:
        return f"{self.n_supported} of {self.n_tested}" if self.n_tested else "not tested"

    @property
    def star(self) -> dict[str, str]:
        return {measure.name: " *" if measure.name in self.different else "" for measure in MEASURES}


@dataclass(frozen=True)
class LabResults:
    """The table of the page, and how long it took."""

    variants: list[_VariantResult]
    train_seconds: float
    compare_seconds: float

    def lines(self) -> list[str]:
        """Return the table, the sentences and the seconds."""
        header = " | ".join(measure.name.replace("_", " ") for measure in MEASURES)
        cells = " | ".join(f"{{{measure.name}:{measure.form}}}{{star[{measure.name}]}}" for measure in MEASURES)
        template = f"{{name}} | {{n_seeds}} | {cells} | {{supported}}"
        return [
            *row_table(f"variant | seeds | {header} | supported", template, self.variants),
            "",
            *(f"- {variant.sentence}" for variant in self.variants),
            "",
            f"Training took {self.train_seconds:.0f} s, the comparison {self.compare_seconds:.0f} s.",
        ]


def _variant_result(entry: dict[str, Any]) -> _VariantResult:
    """Return what the page shows of an entry of compare.json."""
    # By measure; a model that is not causal has no head
    means: dict[str, Estimate | None] = {}
    different = []
    for name, found in entry["measures"].items():
        means[name] = None if found["mean"] is None else Estimate(found["mean"], *found["interval"])
        if found.get("difference", {}).get("is_significant"):
            different.append(name)
    return row_from(_VariantResult, entry, n_seeds=len(entry["seeds"]), different=different, **means)


def main(options: _LabOptions) -> None:
    """Train the sweep, compare it, write the page and its figure."""
    if len(listed(options.seeds)) < MIN_SEEDS:
        raise UserError(f"seeds={options.seeds}: intervals need {MIN_SEEDS} seeds or more")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "lab")
        cache = f"cache_dir={folder}/cache"
        # All variants with all seeds, two at a time
        parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
        sweep = ("-m", "experiment=lab/all", f"seed={options.seeds}", f"out={out}")
        training = run_script("train", *sweep, *parallel, cache)
        comparison = run_script("eval", f"compare={out}", "figures=true", cache)
        entries = json.loads((out / "probe" / "compare.json").read_text())["variants"]
        shutil.copy(out / "probe" / "figures" / "compare.png", RESULTS / "lab.png")
    variants = [_variant_result(entry) for entry in entries]
    write_page("lab", "The attention lab", LabResults(variants, training.seconds, comparison.seconds), threads=1)


if __name__ == "__main__":
    start_benchmark(main, _LabOptions)
