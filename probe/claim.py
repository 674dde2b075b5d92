"""The claim card: everything that may be said about one head, and the claim as text made from it alone."""

from collections.abc import Mapping
from typing import Any

from probe.items import HEADLINE
from probe.statistics import MIN_SEEDS
from probe.verdict import LEVELS, NOT_ESTABLISHED, SUPPORTED

Card = dict[str, Any]
_LINKS = {
    "before_pronoun": "the place of the next pronoun to the person that it names",
    "pronoun": "a pronoun to its antecedent",
    "cue": "the word that decides a pronoun to the pronoun's antecedent",
    "before_repeat": "the token before a repeated mention to the first mention",
}
_HEADLINE_ITEMS = "with nouns that were never antecedents in training, in sentence frames that training never used"
_UNSELECTED_ITEMS = "with nouns and sentence frames its head was not selected on"  # if the training data are unknown
_COPIED = "question family site layer head verdict evidence_level criteria reasons".split()
_SCORES = "accuracy pair_accuracy block_accuracy pronoun_contrast strict_accuracy value_weighted_contrast".split()


def claim_card(entry: Mapping[str, Any], model: Mapping[str, Any]) -> Card:
    """Returns the claim card of a judged entry of probe.json's `selected`; `model` is that of probe.json."""
    test = entry["test"][HEADLINE]
    card: Card = {"claim": ""} | {name: entry[name] for name in _COPIED}
    card |= {"model": dict(model), "holdout": HEADLINE, "n_items": test["n_items"], "clusters": test["clusters"]}
    card["scores"] = {name: test.get(name) for name in _SCORES}
    card["intervals"] = {name: test.get(f"{name}_interval") for name in _SCORES}
    card |= {"best_baseline": test["best_baseline"], "untrained": test.get("untrained")}
    card["does_not_show"] = _limits(card)
    card["claim"] = _claim(card)
    return card


def is_external(model: Mapping[str, Any]) -> bool:
    """Returns whether the model of a card or of probe.json was trained elsewhere, so its training data are unknown."""
    return "source" in model


def _claim(card: Card) -> str:
    """Returns the claim in two or three sentences."""
    head, link = f"L{card['layer']}H{card['head']}", _LINKS[card["site"]]
    level = card["evidence_level"]
    verdict = f'Question "{_words(card["question"])}": {card["verdict"]}, evidence level {level} ({LEVELS[level]}).'
    if card["verdict"] == NOT_ESTABLISHED:
        opening = f"No attention head is shown to link {link}; the best candidate is {head}."
    else:
        opening = f"Attention head {head} {'links' if card['verdict'] == SUPPORTED else 'may link'} {link}."
    knows_training = card["model"].get("trained_on") == "stories"
    baseline = card["best_baseline"]
    score = (
        f"{head} attends to the antecedent more than to the distractor in {_accuracy(card)} of {card['n_items']} items "
        f"{_HEADLINE_ITEMS if knows_training else _UNSELECTED_ITEMS}; the best baseline "
        f"({baseline['name']}) is right in {_percent(baseline['accuracy'])}"
    )
    if card["untrained"]:
        score += f", the best heads of untrained models in {_percent(card['untrained']['accuracy'])}"
    sentences = [opening, verdict, f"{score}."]
    for outcome in ("not met", "not measured"):
        names = [_words(criterion["name"]) for criterion in card["criteria"] if criterion["outcome"] == outcome]
        sentences += [f"Criteria {outcome}: {', '.join(names)}."] if names else []
    return " ".join(sentences)


def _limits(card: Card) -> list[str]:
    """Returns what a reader might infer from the card and should not."""
    limits = ["that the model understands the text", "that another run has such a head at the same index"]
    if card["evidence_level"] in ("E0", "E1", "E2"):
        limits.append("that the model's answer depends on this head: attention alone is not a cause")
    if is_external(card["model"]):
        limits.append("that the words or frames were new to the model: its training data are unknown")
    limits.append(f"anything about models trained this way: that needs at least {MIN_SEEDS} training seeds")
    if card["model"].get("token_shift"):
        limits.append("that a head fetches the previous token: model.token_shift adds it to every position")
    interval = card["intervals"]["accuracy"]
    if interval and interval[0] == interval[1]:
        limits.append("how rare errors are: there was none, so resampling shows none")
    n = card["clusters"]
    pairs = f"{n['pairs']} pairs of {n['first_words']} and {n['second_words']} nouns"
    limits.append(f"anything beyond its test sentences: {n['frames']} sentence frames, {pairs}")
    return limits


def _words(name: str) -> str:
    return name.replace("_", " ")


def _accuracy(card: Card) -> str:
    interval = card["intervals"]["accuracy"]
    is_known = interval and all(bound is not None and bound == bound for bound in interval)
    bounds = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if is_known else ""
    return _percent(card["scores"]["accuracy"]) + bounds


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
