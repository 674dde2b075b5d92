"""The claim of a finding as text, made from its values alone, and the limits of the claim."""

from probe.questions import LEVELS, in_words_of
from probe.results import NOT_KNOWN, Estimate, Finding, TestedModel
from probe.statistics import MIN_SEEDS
from probe.verdict import NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED, show

_VERBS = {
    "attention": ("links", "link"),
    "edge": ("copies", "copy"),
    "whose": ("copies", "copy"),
}  # for one head, for several
_HEADLINE_ITEMS = "with nouns that were never antecedents in training, in sentence frames that training never used"
_UNSELECTED_ITEMS = "with words and sentence frames its head was not selected on"  # unknown training data
_NOT_SHOWN = {
    "edge": "that the head finds the person whom the author means: one that copies from anybody passes the same bars",
    "whose": "that the head finds the person whom the author means: what other rules of place tell is not excluded",
}


def claim_of(finding: Finding, model: TestedModel) -> str:
    """Return the claim of a judged finding in a few sentences."""
    scores = {"attention": _of_attention, "edge": _of_edges, "whose": _of_place}[finding.outcome](finding, model)
    level = f"Evidence level {finding.level}: {LEVELS[finding.outcome][finding.level]}."
    missing = []
    for outcome in ("not met", "not measured"):
        names = [each.name.replace("_", " ") for each in finding.judged.criteria if each.outcome == outcome]
        if names:
            missing.append(f"Criteria {outcome}: {', '.join(names)}.")
    claim = " ".join([f"{_opening(finding)}.", *scores, level, *missing])
    return claim if finding.file is None else in_words_of(finding.link, claim)


def asked(finding: Finding) -> str:
    """Return what the heads were tested for, as a heading asks: "links a pronoun to its antecedent"."""
    return f"{_VERBS[finding.outcome][0]} {finding.link}"


def limits_of(finding: Finding, model: TestedModel) -> list[str]:
    """Return what a reader might infer from a claim and should not."""
    limits = ["that the model understands the text", "that another run has such a head at the same index"]
    if finding.outcome in _NOT_SHOWN:
        limits.append(_NOT_SHOWN[finding.outcome])
    if finding.outcome == "attention" and finding.level in ("E0", "E1", "E2"):
        limits.append("that the model's answer depends on this head: attention alone is not a cause")
    if model.is_external:
        limits.append("that the words or frames were new to the model: its training data are unknown")
    limits.append(f"anything about models trained this way: that needs at least {MIN_SEEDS} training seeds")
    accuracy = finding.judged.values.get("accuracy")
    if accuracy and accuracy.low == accuracy.high:
        limits.append("how rare errors are: there was none, so resampling shows none")
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in finding.clusters.items())
    return [*limits, f"anything beyond its test items: {counts}"]


def _opening(finding: Finding) -> str:
    """Return the first sentence of a claim, by the verdict."""
    heads = " and ".join(map(str, finding.judged.heads))
    verb, verb_of_several = _VERBS[finding.outcome]
    if finding.outcome == "whose" and finding.verdict != SUPPORTED:
        shown = "may" if finding.verdict == SUGGESTIVE else "is not shown to"
        return f"Attention head {heads} {shown} copy {finding.link}"
    if finding.verdict == NOT_ESTABLISHED:
        return f"No attention head is shown to {verb_of_several} {finding.link}; the best candidate is {heads}"
    if finding.verdict == SUGGESTIVE:
        return f"Attention head {heads} may {verb_of_several} {finding.link}"
    if finding.verdict != SUPPORTED:
        return "The model does not know the next word: its choice is not shown to follow the persons before it"
    if finding.unit == "set":
        return f"Attention heads {heads} together {verb_of_several} {finding.link.replace('it attends', 'they attend')}"
    return f"Attention head {heads} {verb} {finding.link}"


def _of_attention(finding: Finding, model: TestedModel) -> list[str]:
    """Return the accuracy of the heads, with those of the best rule and of untrained models."""
    heads = " and ".join(map(str, finding.judged.heads))
    subject = f"{heads} attends" if finding.unit == "head" else f"The weights of {heads} together go"
    is_of_stories = model.trained_on == "stories" and finding.file is None
    items = _HEADLINE_ITEMS if is_of_stories else _UNSELECTED_ITEMS
    best = max(finding.rules, key=lambda name: finding.rules[name])
    text = (
        f"{subject} to the antecedent more than to the other mention in {_percent(finding.judged.values['accuracy'])} "
        f"of {finding.n} items {items}; the best rule ({best}) is right in {100 * finding.rules[best]:.1f} %"
    )
    if "accuracy" in finding.untrained:
        text += f", the best heads of untrained models in {100 * finding.untrained['accuracy'].value:.1f} %"
    return [f"{text}."]


def _of_place(finding: Finding, model: TestedModel) -> list[str]:
    """Return what the edges predict beyond the place rule, with the accuracy of rules."""
    values = finding.judged.values
    share = values["choice_share"]
    best = max(finding.rules, key=lambda name: finding.rules[name])
    return [
        f"In {finding.n:,} passages with a woman and a man, names drawn anew, the part of the decision that the edges "
        f"carry has a coefficient of {values['beyond_place'].value:.2f} for whom the author means, beyond the place "
        f"rule; p {values['p_beyond_place'].value:.4f}, the author's choice permuted where that rule says the same.",
        f"It looks more at the author's person in {_percent(values['looks'])}; where the place rule is unsure, in "
        f"{_percent(values.get('looks_where_unsure', NOT_KNOWN))}.",
        "If it splits its weights as in passages that look alike to the rule, "
        f"{share.value:.2f} [{show(share.low)}, {show(share.high)}] of the model's choice between them is lost.",
        f"The person that the model picks is the author's in {_percent(values['author'])} (area under the ROC curve "
        f"{values['author_auc'].value:.2f}); the best rule ({best}) is right in {100 * finding.rules[best]:.1f} %.",
    ]


def _of_edges(finding: Finding, model: TestedModel) -> list[str]:
    """Return what the model answers, and what the heads decide of it."""
    judged = finding.judged
    swap = judged.values["swap"]
    exchanged = f"{swap.value:.2f} [{swap.low:.2f}, {swap.high:.2f}]"
    return [
        f"The model follows the person in {_percent(judged.values['follows'])} of {finding.clusters['one']} passages "
        "that mention one.",
        f"In {finding.clusters['two']} passages with one of each class, exchanging the attention weights on the two "
        f"moves a share of {exchanged} of the decision to the other side and changes the more probable pronoun in "
        f"{judged.value('flips'):.0%}; corrected p {judged.value('p'):.4f}.",
        f"The person that the model picks is the author's in {judged.value('author'):.0%} of them; the last one "
        f"mentioned is the author's in {finding.rules['nearest']:.0%}.",
    ]


def _percent(estimate: Estimate) -> str:
    """Return "98.8 % [96.1, 100.0]", without the interval if it is not known."""
    text = f"{100 * estimate.value:.1f} %"
    if estimate.low is None or estimate.high is None or estimate.low != estimate.low:
        return text
    return f"{text} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
