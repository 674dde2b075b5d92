"""Runs of a sweep without training: their metrics and the results of their probe."""

from typing import Any

from lab.compare import Comparison, VariantRun, compare_runs
from lab.seeds import SeedRun
from probe.config import Holdouts, ProbeConfig
from probe.results import (
    AttentionResult,
    BehaviourResult,
    BestBaseline,
    CausalResult,
    HoldoutResult,
    ProbeResults,
    QuestionResult,
    WeightsResult,
)
from tests.blank import blank
from training.metrics import AnswerLoss, Metrics, ProbePoint, QuestionPoint, TrainRecord, ValidationRecord

TIED, UNMASKED = {"model.tie_query_key": True}, {"model.mask": "none"}
BASE = [0.030, 0.034, 0.028, 0.031, 0.036]
WORSE = [gap + 0.010 for gap in BASE]
STEPS = [0, 100, 200, 300, 400, 500, 600, 700, 800, 1000]
CONFIG = ProbeConfig(
    seed=0, tokens_per_batch=1, n_bootstrap=100, n_untrained=2, n_controls=10, holdouts=Holdouts.verdict
)


def probe_results(**values: object) -> ProbeResults:
    results: ProbeResults = blank(ProbeResults, settings=CONFIG, **values)
    return results


def strong_head(layer: int = 0, head: int = 0, accuracy: float = 0.95, verdict: str = "supported") -> QuestionResult:
    """Return a head for the question "number" that reaches level E4 if other seeds have such a head."""
    headline = blank(
        HoldoutResult,
        accuracy=accuracy,
        block_accuracy=accuracy - 0.1,
        pronoun_contrast=accuracy + 1,
        p_pair_accuracy=0.001,
        p_pronoun_contrast=0.001,
        best_baseline=blank(BestBaseline, difference_interval=(0.3, 0.5)),
    )
    result: QuestionResult = blank(
        QuestionResult,
        question="number",
        layer=layer,
        head=head,
        test={"iid": blank(HoldoutResult), "headline": headline},
        causal=blank(CausalResult, attention_swap=0.9, edge_specificity_interval=(0.2, 0.4), denoising_patch=0.9),
        weights=WeightsResult(0.85, (0.8, 0.9)),
        verdict=verdict,
    )
    return result


def answers(level: str, resolved_share: float | None, holdout: str = "iid") -> BehaviourResult:
    group = {"family": "agreement", "level": level, "site": "pronoun", "holdout": holdout}
    result: BehaviourResult = blank(BehaviourResult, **group, n=80, accuracy=0.5, resolved_share=resolved_share)
    return result


def rising_curves(place: tuple[int, int], rise: int, end: float) -> Metrics:
    """Return curves in which one head of two layers of three rises at step `rise`, the resolved share 100 later."""
    points = []
    for step in STEPS:
        accuracy = [[0.5] * 3 for _ in range(2)]
        accuracy[place[0]][place[1]] = end if step >= rise else 0.5
        scores = blank(
            QuestionPoint,
            chance_level=0.6,
            resolved_share=1.0 if step >= rise + 100 else 0.0,
            accuracy_heads=accuracy,
            pronoun_contrast_heads=[[8 * (value - 0.5) for value in row] for row in accuracy],
        )
        loss = AnswerLoss(model=6.0 - step / 200)
        points.append(ProbePoint(step, {"number": scores}, {"number": loss}, {}, {}))
    return Metrics([], [], points)


def seed_run(seed: int, rise: int = 200, accuracy: float = 0.95, verdict: str = "supported") -> SeedRun:
    """Return a run whose head is another one in each seed."""
    place = (seed % 2, seed % 3)
    probe = probe_results(
        selected=[strong_head(*place, accuracy, verdict)],
        behaviour=[answers("number", seed / 10), answers("gender", None)],
    )
    return SeedRun(f"run {seed}", seed, probe, rising_curves(place, rise, accuracy))


def five_runs() -> list[SeedRun]:
    """Return runs that rise at different steps."""
    return [seed_run(seed, rise) for seed, rise in ((1, 200), (2, 300), (3, 200), (4, 400), (5, 300))]


def variant_run(name: str, seed: int, gap: float, changes: dict[str, Any]) -> VariantRun:
    """Return a run; its last gap and its gradient norms up to step 20 count."""
    train = [TrainRecord(step, 1.0, norm) for step, norm in ((5, 10.0), (20, 15.0), (25, 99.0))]
    validation = []
    for last in (9.9, gap):
        validation.append(ValidationRecord(step=0, loss=1.0, bits_per_byte=None, whole=False, gap=last))
    probe = probe_results(
        selected=[strong_head(accuracy=0.8)],
        behaviour=[answers("gender", 0.1), answers("number", 0.9), answers("number", 0.7, "headline")],
        attention=AttentionResult([[0.4, 0.6]], [[0.7, 0.5]]),
    )
    return VariantRun(name, seed, changes, Metrics(train, validation, []), None if changes == UNMASKED else probe)


def variant_runs(gaps: list[float], changes: dict[str, Any] | None = None, first: int = 0) -> list[VariantRun]:
    return [variant_run(str(first + i), i + 1, gap, changes or {}) for i, gap in enumerate(gaps)]


def two_variants() -> Comparison:
    return compare_runs([*variant_runs(BASE), *variant_runs(WORSE, TIED, first=5)], {"model.tie_query_key": False})
