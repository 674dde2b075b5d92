"""What can be set about a probe; the values are in configs/probe/."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeConfig:
    """How thoroughly heads are tested."""

    seed: int  # of resamplings and untrained models, 0 or more
    tokens_per_batch: int  # of one forward pass, 1 or more
    n_bootstrap: int  # resamplings behind each interval, 100 or more
    n_untrained: int  # models of random weights probed in the same way, 2 or more
    n_controls: int  # sets of labels drawn by lot, for selectivity, 10 or more

    def __post_init__(self) -> None:
        """Refuse counts too small to mean anything."""
        for name, least in (("seed", 0), ("tokens_per_batch", 1), ("n_bootstrap", 100), ("n_untrained", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"probe.{name} must be {least} or more, got {getattr(self, name)}")
        if self.n_controls < 10:
            raise ValueError(f"probe.n_controls must be 10 or more, got {self.n_controls}")
