"""How often the statistics of `verb` are wrong, if an effect of a noun is the same in both of its places.

Every noun of the tested blocks of `verb` is the first in some and the second in others. Values without any difference
from 0 are drawn for these blocks: an effect of each noun, the same in both places or another in each, an effect of
each frame, and noise. They are tested with a noun as one cluster, as eval.py does, and with a cluster for each of its
places, as it did before a reader found the fault. Writes research/results/places.{json,md}.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.sources import source_of
from probe.config import ProbeConfig
from probe.opened_run import open_run
from probe.questions import HEADLINE
from probe.statistics import Sample
from probe.text_tables import markdown_table
from research.measure import start_benchmark, write_page

N_DRAWS = 600
N_BOOTSTRAP = 400
NOISE = 0.3  # standard deviations, of which that of a noun's effect is 1
FRAMES = (0.0, 0.5, 1.0)


@dataclass
class _Options:
    """python -m research.places run=DIR [cache=.cache], a default run.

    - cache: cache_dir of the run
    """

    run: str = MISSING
    cache: str = ".cache"


@dataclass(frozen=True)
class _Row:
    """Shares of the draws with a p below .05 and .01, and with 0 in the 95 % interval, by the clusters of the test."""

    effect: str
    frames: float
    shares: dict[str, list[float]]

    def cells(self) -> list[str]:
        cells = [self.effect, f"{self.frames:g}"]
        for shares in self.shares.values():
            cells += [f"{share:.3f}" for share in shares]
        return cells


@dataclass(frozen=True)
class PlacesResults:
    """The table of the page."""

    n_blocks: int
    n_nouns: int
    rows: list[_Row]

    def lines(self) -> list[str]:
        of_each = ("p < .05", "p < .01", "coverage")
        header = ["effect of a noun", "sd of frames"]
        header += [f"{clusters}: {share}" for clusters in ("one cluster", "two clusters") for share in of_each]
        return [
            f"{self.n_blocks} tested blocks with {self.n_nouns} nouns; {N_DRAWS} draws of each row, one head, "
            f"{N_BOOTSTRAP} resamplings; sd of a noun's effect 1, of the noise {NOISE}.",
            "",
            *markdown_table(header, [row.cells() for row in self.rows]),
        ]


def main(options: _Options) -> None:
    """Draw the values, test them, and write the page."""
    opened = open_run(Path(options.run), torch.device("cpu"))
    items = source_of(opened, ProbeConfig(), options.cache).items.of("verb", HEADLINE)
    n_blocks = len(items) // 2
    frames, nouns = items.clusterings(n_blocks)
    designs = items.designs(n_blocks)
    first, second = nouns.T
    apart = [frames, first, second]
    samples = {"one": ([frames, nouns], designs), "two": (apart, [designs[0], (frames, first), (frames, second)])}

    names, numbers = np.unique(nouns, return_inverse=True)
    numbers = numbers.reshape(nouns.shape)
    of_frame = np.unique(frames, return_inverse=True)[1]
    rng = np.random.default_rng(0)
    rows = []
    for (effect, is_shared), size in product({"the same": True, "another": False}.items(), FRAMES):
        counts = {name: np.zeros(3) for name in samples}
        for draw in range(N_DRAWS):
            effects = rng.normal(size=(2, len(names)))
            effects[1] = effects[0] if is_shared else effects[1]
            values = effects[0][numbers[:, 0]] + effects[1][numbers[:, 1]]
            values += size * rng.normal(size=of_frame.max() + 1)[of_frame] + NOISE * rng.normal(size=n_blocks)
            config = replace(ProbeConfig(), n_bootstrap=N_BOOTSTRAP, seed=draw)
            for name, (clusterings, of_interval) in samples.items():
                sample = Sample(values[:, None], clusterings, of_interval)
                p = sample.test(config).p[0]
                [mean] = sample.means(config)
                assert mean.low is not None and mean.high is not None
                counts[name] += [p < 0.05, p < 0.01, mean.low <= 0 <= mean.high]
        rows.append(_Row(effect, size, {name: (count / N_DRAWS).tolist() for name, count in counts.items()}))
        print(" | ".join(rows[-1].cells()), flush=True)
    write_page("places", "A noun in both places", PlacesResults(n_blocks, len(names), rows))


if __name__ == "__main__":
    start_benchmark(main, _Options)
