"""Settings of the probe; configs/eval/eval.yaml has the same defaults."""

from dataclasses import dataclass

from settings.fields import check_limits, setting


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Batch size, random seed and sample sizes of the probe's tests."""

    seed: int = setting("of resampling, label controls and untrained models", default=0, low=0)
    tokens_per_batch: int = setting("tokens of one forward pass", default=4096, low=1)
    n_bootstrap: int = setting("resamplings per interval, and sign flips per test", default=2000, low=100)
    n_untrained: int = setting("untrained models that are probed in the same way", default=5, low=2)
    n_controls: int = setting("control tasks for selectivity", default=100, low=10)

    def __post_init__(self) -> None:
        check_limits(self, "probe.")
