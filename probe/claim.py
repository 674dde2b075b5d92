"""The claim of a finding as text, made from its values alone, and the limits of the claim."""

import math

from probe.outcomes import OUTCOMES
from probe.questions import QUESTIONS
from probe.results import Finding, TestedModel
from probe.statistics import MIN_SEEDS


def claim_of(finding: Finding, model: TestedModel) -> str:
    """Return the claim of a judged finding in a few sentences."""
    outcome = OUTCOMES[finding.outcome]
    sentences = [f"{outcome.opening(finding)}.", *outcome.sentences(finding, model)]
    sentences += filter(None, [chosen_again(finding)])
    sentences.append(f"Evidence level {finding.level}: {outcome.levels[finding.level]}.")
    for result in ("not met", "not measured"):
        names = [each.label for each in finding.judged.criteria if each.outcome == result]
        if names:
            sentences.append(f"Criteria {result}: {', '.join(names)}.")
    return " ".join([*sentences, f"Assumes: {outcome.assumes}."])


def chosen_again(finding: Finding, below: float = math.inf) -> str:
    """Return how often resampled dev sets choose the same head; "" if that is not known, or not `below` a share."""
    share = finding.head.value("chosen_again")
    if not share < below:
        return ""
    return f"{share:.0%} of resampled choosing sets choose {finding.place} as the best single head."


def asked(finding: Finding) -> str:
    """Return what the heads were tested for, as a heading asks: "links a pronoun to its antecedent"."""
    return f"{OUTCOMES[finding.outcome].verbs[0]} {finding.link}"


def limits_of(finding: Finding, model: TestedModel) -> list[str]:
    """Return what a reader might infer from a claim and should not."""
    limits = ["that the model understands the text", "that another run has such a head at the same index"]
    limits += OUTCOMES[finding.outcome].limits(finding)
    if finding.file is None:
        limits += QUESTIONS[finding.question].limits
    if model.is_external:
        limits.append("that the words or frames were new to the model: its training data are unknown")
    limits.append(f"anything about models trained this way: that needs at least {MIN_SEEDS} training seeds")
    accuracy = finding.judged.values.get("accuracy")
    if accuracy and accuracy.low == accuracy.high:
        limits.append("how rare errors are: there was none, so resampling shows none")
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in finding.clusters.items())
    return [*limits, f"anything beyond its test items: {counts}"]
