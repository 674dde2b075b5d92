"""Settings of the probe; the values are in configs/eval/eval.yaml."""

from dataclasses import dataclass
from enum import StrEnum


class Holdouts(StrEnum):
    """The hold-outs to test: those that the verdict needs (iid and headline), or all seven."""

    verdict = "verdict"
    all = "all"


class Items(StrEnum):
    """The sentences that an external model is tested on."""

    english = "english"  # blocks of sentences in plain English
    stories = "stories"  # those that train.py generates


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeConfig:
    """Batch size, random seed and sample sizes of the probe's tests."""

    seed: int  # resamplings, label controls and untrained models, 0 or more
    tokens_per_batch: int  # forward pass size, 1 or more
    n_bootstrap: int  # resamplings per interval and sign flips per test, 100 or more
    n_untrained: int  # untrained models that are probed in the same way, 2 or more
    n_controls: int  # control tasks for selectivity, 10 or more
    holdouts: Holdouts

    def __post_init__(self) -> None:
        """Raise ValueError if a value is too small."""
        minimum = {"seed": 0, "tokens_per_batch": 1, "n_bootstrap": 100, "n_untrained": 2, "n_controls": 10}
        for name, least in minimum.items():
            if getattr(self, name) < least:
                raise ValueError(f"probe.{name}={getattr(self, name)}: must be {least} or more")
