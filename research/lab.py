"""Train and compare all attention variants. Writes research/results/lab.{json,md}.

Each variant changes one switch of the model (configs/variant/). Two runs train at a time, one thread each.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.results import Estimate
from probe.statistics import MIN_SEEDS
from probe.text_tables import markdown_table
from research.measure import listed, run_script, start_benchmark, value_cell, write_page
from settings.errors import UserError


@dataclass
class _LabOptions:
    """python -m research.lab [seeds=1,2,3,4,5]."""

    seeds: str = "1,2,3,4,5"


@dataclass(frozen=True)
class _VariantRow:
    """One variant, means over seeds by measure (None: not measured)."""

    name: str
    n_seeds: int
    n_supported: int
    n_tested: int
    means: dict[str, Estimate | None]
    different: list[str]  # measures that differ from the standard

    def cells(self) -> list[str]:
        """Return the row of the table, with a star at the measures that differ from the standard."""
        cells = [self.name, str(self.n_seeds)]
        for name, mean in self.means.items():
            star = " *" if name in self.different else ""
            cells.append(value_cell(mean, ".4f" if name in ("gap", "loss") else ".3f") + star)
        return [*cells, f"{self.n_supported} of {self.n_tested}" if self.n_tested else "not tested"]


@dataclass(frozen=True)
class LabResults:
    """The table of the page."""

    variants: list[_VariantRow]

    def lines(self) -> list[str]:
        measures = [name.replace("_", " ") for name in self.variants[0].means]
        header = ["variant", "seeds", *measures, "supported"]
        return [
            "Training view and tested values of the question `verb`; means over seeds with 95 % intervals.",
            "",
            *markdown_table(header, [variant.cells() for variant in self.variants]),
        ]


def _variant_row(variant: dict[str, Any], names: list[str]) -> _VariantRow:
    """Return what the page shows of a variant of sweep.json: `names` of its training and of its first question."""
    means: dict[str, Estimate | None] = dict.fromkeys(names)
    question = variant["questions"][0]
    for name, value in (variant["values"] | question["values"]).items():
        means[name] = Estimate(value["mean"], *(value["interval"] or ()))
    tests = variant["differences"] | question["differences"]
    different = [name for name, test in tests.items() if test["is_significant"]]
    return _VariantRow(
        name=variant["name"],
        n_seeds=len(variant["seeds"]),
        n_supported=question["n_supported"],
        n_tested=question["n"],
        means=means,
        different=different,
    )


def main(options: _LabOptions) -> None:
    """Train the sweep, compare it, write the page."""
    if len(listed(options.seeds)) < MIN_SEEDS:
        raise UserError(f"seeds={options.seeds}: intervals need {MIN_SEEDS} seeds or more")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "lab")
        cache = f"cache_dir={folder}/cache"
        # All variants with all seeds, two at a time
        parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
        sweep = ("-m", "experiment=lab/all", f"seed={options.seeds}", f"out={out}")
        run_script("train", *sweep, *parallel, cache)
        run_script("eval", f"runs={out}", cache)
        content = json.loads((out / "probe" / "sweep.json").read_text())
    standard = content["variants"][0]
    names = [*standard["values"], *standard["questions"][0]["values"]]
    variants = [_variant_row(variant, names) for variant in content["variants"]]
    write_page("lab", "The attention lab", LabResults(variants))


if __name__ == "__main__":
    start_benchmark(main, _LabOptions)
