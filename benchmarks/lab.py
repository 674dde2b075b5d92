"""Train and compare all attention variants. Writes docs/results/lab.{json,md,png}.

Each variant changes one switch of the model (configs/variant/). Two runs train at a time, one thread each.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import listed, row_from, row_table, run_script, start_benchmark, write_page
from data.errors import UserError
from data.typed_json import from_json
from lab.compare import MEASURES, Comparison, VariantResult
from probe.results import Estimate
from probe.statistics import MIN_SEEDS


@dataclass
class _LabOptions:
    """python -m benchmarks.lab [seeds=1,2,3,4,5]."""

    seeds: str = "1,2,3,4,5"


@dataclass(frozen=True)
class _VariantRow:
    """One variant, means over seeds by measure (None: not measured), and the sentence about it."""

    name: str
    n_seeds: int
    n_supported: int
    n_tested: int
    means: dict[str, Estimate | None]
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

    variants: list[_VariantRow]
    train_seconds: float
    compare_seconds: float

    def lines(self) -> list[str]:
        header = " | ".join(measure.name.replace("_", " ") for measure in MEASURES)
        cells = " | ".join(f"{{means[{measure.name}]:{measure.form}}}{{star[{measure.name}]}}" for measure in MEASURES)
        template = f"{{name}} | {{n_seeds}} | {cells} | {{supported}}"
        return [
            *row_table(f"variant | seeds | {header} | supported", template, self.variants),
            "",
            *(f"- {variant.sentence}" for variant in self.variants),
            "",
            f"Training took {self.train_seconds:.0f} s, the comparison {self.compare_seconds:.0f} s.",
        ]


def _variant_row(variant: VariantResult) -> _VariantRow:
    """Return what the page shows of a variant."""
    # By measure; a model that is not causal has no head
    means: dict[str, Estimate | None] = {}
    different = []
    for name, found in variant.measures.items():
        means[name] = None
        if found.mean is not None and found.interval is not None:
            means[name] = Estimate(found.mean, *found.interval)
        if found.difference and found.difference.is_significant:
            different.append(name)
    return row_from(_VariantRow, variant, n_seeds=len(variant.seeds), means=means, different=different)


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
        comparison = run_script("eval", f"compare={out}", cache)
        content = json.loads((out / "probe" / "compare.json").read_text())
    compared: Comparison = from_json(Comparison, content, "compare.json")
    variants = [_variant_row(variant) for variant in compared.variants]
    write_page("lab", "The attention lab", LabResults(variants, training.seconds, comparison.seconds), threads=1)


if __name__ == "__main__":
    start_benchmark(main, _LabOptions)
