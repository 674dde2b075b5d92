"""The claim card: everything that may be said about one head, and the claim as text made from its values alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from probe.items import HEADLINE
from probe.results import (
    BestBaseline,
    Clusters,
    Criterion,
    Head,
    Interval,
    QuestionResult,
    TestedModel,
    UntrainedScores,
)
from probe.statistics import MIN_SEEDS
from probe.verdict import LEVELS, NOT_ESTABLISHED, SUPPORTED

_LINKS = {
    "before_pronoun": "the place of the next pronoun to the person that it names",
    "pronoun": "a pronoun to its antecedent",
    "cue": "the word that decides a pronoun to the pronoun's antecedent",
    "before_repeat": "the token before a repeated mention to the first mention",
}
_HEADLINE_ITEMS = "with nouns that were never antecedents in training, in sentence frames that training never used"
_UNSELECTED_ITEMS = "with words and sentence frames its head was not selected on"  # if the training data are unknown
_SCORES = "accuracy pair_accuracy block_accuracy pronoun_contrast strict_accuracy value_weighted_contrast".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCard:
    """An object of claims.json: a claim about a head, all values behind it, and its limits."""

    claim: str
    question: str
    family: str
    site: str
    layer: int
    head: int
    heads: list[Head]  # that the verdict is about
    verdict: str
    evidence_level: str
    criteria: list[Criterion]
    reasons: list[str]
    model: TestedModel
    holdout: str
    n_items: int
    clusters: Clusters
    scores: dict[str, float]  # of `heads`
    intervals: dict[str, Interval | None]  # intervals of the scores; None for a score without one
    best_baseline: BestBaseline
    untrained: UntrainedScores | None
    does_not_show: list[str]


def claim_card(result: QuestionResult, model: TestedModel) -> ClaimCard:
    """Return the claim card of a judged head."""
    test = result.headline
    scores = result.judged_scores
    return ClaimCard(
        claim=_claim(result, model),
        question=result.question,
        family=result.family,
        site=result.site,
        layer=result.layer,
        head=result.head,
        heads=result.judged_heads,
        verdict=result.verdict,
        evidence_level=result.evidence_level,
        criteria=result.criteria,
        reasons=result.reasons,
        model=model,
        holdout=HEADLINE,
        n_items=test.n_items,
        clusters=test.clusters,
        scores={name: getattr(scores, name) for name in _SCORES if hasattr(scores, name)},
        intervals={name: getattr(scores, f"{name}_interval", None) for name in _SCORES if hasattr(scores, name)},
        best_baseline=test.best_baseline,
        untrained=test.untrained,
        does_not_show=_limits(result, model),
    )


def _claim(result: QuestionResult, model: TestedModel) -> str:
    """Return the claim in two or three sentences."""
    # Which head, and how sure
    link = result.own.link if result.own else _LINKS[result.site]
    heads = " and ".join(map(str, result.judged_heads))
    if result.verdict == NOT_ESTABLISHED:
        opening = f"No attention head is shown to link {link}; the best candidate is {result.place}."
    else:
        verb = "links" if result.verdict == SUPPORTED else "may link"
        opening = f"Attention head {result.place} {verb} {link}."
        if result.unit == "set":
            opening = f"Attention heads {heads} together link {link}."
    level = f"evidence level {result.evidence_level} ({LEVELS[result.evidence_level]})"
    verdict = f'Question "{_words(result.question)}": {result.verdict}, {level}.'

    # Its accuracy, with those of the best rule and of untrained models
    test = result.headline
    scores = result.judged_scores
    subject = f"{heads} attends" if result.unit == "head" else f"The weights of {heads} together go"
    is_of_stories = model.trained_on == "stories" and result.own is None
    items = _HEADLINE_ITEMS if is_of_stories else _UNSELECTED_ITEMS
    score = (
        f"{subject} to the antecedent more than to the distractor in "
        f"{_percent_with_interval(scores.accuracy, scores.accuracy_interval)} of {test.n_items} items {items}; "
        f"the best baseline ({test.best_baseline.name}) is right in {_percent(test.best_baseline.accuracy)}"
    )
    if test.untrained is not None:
        score += f", the best heads of untrained models in {_percent(test.untrained.accuracy)}"

    # Criteria that are missing for more
    sentences = [opening, verdict, f"{score}."]
    for outcome in ("not met", "not measured"):
        names = [_words(criterion.name) for criterion in result.criteria if criterion.outcome == outcome]
        if names:
            sentences.append(f"Criteria {outcome}: {', '.join(names)}.")
    return " ".join(sentences)


def _limits(result: QuestionResult, model: TestedModel) -> list[str]:
    """Return what a reader might infer from the card and should not."""
    limits = ["that the model understands the text", "that another run has such a head at the same index"]
    if result.evidence_level in ("E0", "E1", "E2"):
        limits.append("that the model's answer depends on this head: attention alone is not a cause")
    if model.is_external:
        limits.append("that the words or frames were new to the model: its training data are unknown")
    limits.append(f"anything about models trained this way: that needs at least {MIN_SEEDS} training seeds")
    if model.fact("token_shift"):
        limits.append("that a head fetches the previous token: model.token_shift adds it to every position")
    low, high = result.judged_scores.accuracy_interval
    if low == high:
        limits.append("how rare errors are: there was none, so resampling shows none")
    n = result.headline.clusters
    pairs = f"{n.pairs} pairs of {n.first_words} and {n.second_words} words"
    limits.append(f"anything beyond its test sentences: {n.frames} sentence frames, {pairs}")
    return limits


def _words(name: str) -> str:
    return name.replace("_", " ")


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _percent_with_interval(value: float, interval: Sequence[float]) -> str:
    """Return "98.8 % [96.1, 100.0]", without the interval if it is not known."""
    low, high = interval
    is_known = low == low and high == high  # nan is not equal to itself
    return _percent(value) + (f" [{100 * low:.1f}, {100 * high:.1f}]" if is_known else "")
