"""Runs of a sweep without training: their metrics and the results of their probe."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from probe.config import ProbeConfig
from probe.results import Estimate, Finding, Head, Part, ProbeResults, Tested
from probe.seeds import SweepRun
from probe.variants import Comparison, compare_runs
from tests.blank import blank
from training.metrics import Metrics, TrainRecord, ValidationRecord

TIED, UNMASKED = {"model.tie_query_key": True}, {"model.mask": "none"}
BASE = [0.030, 0.034, 0.028, 0.031, 0.036]
WORSE = [gap + 0.010 for gap in BASE]


def finding(*heads: Head, question: str = "number", outcome: str = "attention", **values: Any) -> Finding:
    """Return a finding that reaches level E4 if other seeds have such a head; several heads are a set."""
    measured = {"accuracy": 0.95, "block_accuracy": 0.85, "contrast": 2.0, "swap": 0.9, "restored": 0.9} | values
    estimates = {name: Estimate(value) for name, value in measured.items()}
    estimates |= {"ov_auc": Estimate(0.85, 0.8, 0.9), "author_where_nearest_wrong": Estimate(0.6, 0.55, 0.7)}
    tested = Tested(list(heads or [Head(0, 0)]), estimates, verdict="supported", level="E3")
    unit = "set" if len(heads) > 1 else "head"
    found: Finding = blank(Finding, question=question, outcome=outcome, unit=unit, head=tested, set=tested)
    return found


def sweep_run(seed: int, findings: Sequence[Finding], **values: Any) -> SweepRun:
    """Return a run; the fields of its metrics and changes are empty unless they are given."""
    probe = blank(ProbeResults, settings=ProbeConfig(), findings=list(findings))
    return SweepRun(**{"name": f"run {seed}", "seed": seed, "metrics": Metrics([], [], []), "probe": probe} | values)


def seed_run(seed: int, accuracy: float = 0.95) -> SweepRun:
    """Return a run with another head in each seed."""
    return sweep_run(seed, [finding(Head(seed % 2, seed % 3), accuracy=accuracy)])


def five_runs() -> list[SweepRun]:
    return [seed_run(seed) for seed in range(1, 6)]


def variant_runs(gaps: Sequence[float | None], changes: dict[str, Any] | None = None, first: int = 0) -> list[SweepRun]:
    """Return runs of seeds 1, 2, ...; the last gap and the gradient norms up to step 20 of each count."""
    runs = []
    train = [TrainRecord(step, 1.0, norm) for step, norm in ((5, 10.0), (20, 15.0), (25, 99.0))]
    parts = {}
    for name, share in (("iid", 0.9), ("headline", 0.7)):
        parts[name] = blank(Part, values={"resolved_share": Estimate(share)})
    of_question = replace(finding(), parts=parts)
    for i, gap in enumerate(gaps):
        validation = []
        for last in (9.9, gap):
            validation.append(ValidationRecord(step=0, loss=1.0, bits_per_byte=None, whole=False, gap=last))
        values = {"name": str(first + i), "changes": changes or {}, "metrics": Metrics(train, validation, [])}
        runs.append(sweep_run(i + 1, [of_question], **values, **({"probe": None} if changes == UNMASKED else {})))
    return runs


def two_variants() -> Comparison:
    return compare_runs([*variant_runs(BASE), *variant_runs(WORSE, TIED, first=5)], {"model.tie_query_key": False})
