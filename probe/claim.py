"""The claim card: all that is said of one head, in one dictionary, and the words made from it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from probe.statistics import MIN_SEEDS
from probe.verdict import LEVELS, NOT_ESTABLISHED, SUPPORTED, finite

CARD_VERSION = 1
_LINKS = {
    "before_pronoun": "the word before a pronoun to what comes up again",
    "pronoun": "a pronoun to its antecedent",
    "cue": "the word that decides to what the pronoun before it meant",
    "before_repeat": "the word before a second mention to what is mentioned again",
}
_HOLDOUTS = {
    "iid": "of the kind it was trained on",
    "pairs": "whose pairs of nouns training never put together",
    "nouns": "whose nouns training never let a pronoun mean",
    "templates": "whose frames training never used",
    "headline": "whose nouns training never let a pronoun mean, in frames it never used",
}
# Of a model that was trained elsewhere all that is known is what its head was chosen on.
_HOLDOUTS_ELSEWHERE = {
    "iid": "of the kind its head was chosen on",
    "pairs": "whose pairs of nouns its head was not chosen on",
    "nouns": "whose nouns its head was not chosen on",
    "templates": "whose frames its head was not chosen on",
    "headline": "whose nouns and frames its head was not chosen on",
}
_COPIED = "question family site layer head verdict evidence_level criteria reasons".split()
_MEASURED = "selectivity coreference_share head_type mass causal weights".split()
_SCORES = (
    "accuracy",
    "pair_accuracy",
    "block_accuracy",
    "pronoun_contrast",
    "strict_accuracy",
    "value_weighted_contrast",
)


def claim_card(
    one: dict[str, Any], model: dict[str, Any], holdout: str, seeds: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the card of one judged entry of probe.json's `selected`.

    Args:
        one: the entry, with its verdict.
        model: what it is and, if that is known, how long it was trained; no path.
        holdout: where the claim was tested.
        seeds: {"n", "n_supported", "accuracy_interval"} over training seeds, where there are several.

    """
    found = one["test"][holdout]
    card = {"card_version": CARD_VERSION, "claim": ""} | {name: one[name] for name in _COPIED}
    card |= {"model": model, "holdout": holdout, "n_items": found["n_items"], "clusters": found["clusters"]}
    card["scores"] = {name: found.get(name) for name in _SCORES}
    card["intervals"] = {name: found.get(f"{name}_interval") for name in _SCORES}
    card["p"] = {
        "pair_accuracy": found["p_pair_accuracy"],
        "pronoun_contrast": found["p_pronoun_contrast"],
        "smallest": found["smallest_p"],
    }
    card |= {"best_baseline": found["best_baseline"], "untrained": found.get("untrained")}
    card |= {name: one.get(name) for name in _MEASURED} | {"seeds": seeds}
    card["does_not_show"] = _not_shown(card)
    card["claim"] = _claim(card)
    return finite(card)


def is_from_elsewhere(model: dict[str, Any]) -> bool:
    """Whether a card's, or probe.json's, model was not trained here, so that its text, seed and steps are not known."""
    return "source" in model


def read_card(path: Path) -> dict[str, Any]:
    """Read a card; ValueError where it is none or of another version."""
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        version = card["card_version"]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{path} is not a claim card") from None
    if version != CARD_VERSION:
        raise ValueError(f"{path} is a claim card of version {version}, not {CARD_VERSION}")
    return card


def claim_markdown(card: dict[str, Any]) -> str:
    """Return the whole card as Markdown: the claim, what was measured, what each criterion said, what is not shown."""
    lines = [
        f"**{card['claim']}**",
        "",
        *_table(_rows(card)),
        "",
        "| criterion | measured | bar | |",
        "|---|---|---|---|",
    ]
    for one in card["criteria"]:
        measured = ", ".join(f"{name} {_number(value)}" for name, value in one["measured"].items())
        bars = ", ".join(f"{name} {_number(value)}" for name, value in one["bars"].items())
        lines.append(f"| {one['name']} | {measured} | {bars} | {_outcome(one)} |")
    if card["reasons"]:
        lines += ["", "Why no more is claimed:", *(f"- {reason}" for reason in card["reasons"])]
    return "\n".join([*lines, "", "It does not show:", *(f"- {one}" for one in card["does_not_show"])]) + "\n"


def readme_example(card: dict[str, Any]) -> str:
    """Return the short form for the README: the claim, its main figures side by side, what it does not show."""
    rows = [row for row in _rows(card) if row[0] in _SHORT]
    lines = [
        f"> {card['claim']}",
        "",
        f"| {' | '.join(name for name, _ in rows)} |",
        "|---" * len(rows) + "|",
        f"| {' | '.join(value for _, value in rows)} |",
        "",
        f"It does not show {'; '.join(card['does_not_show'])}.",
    ]
    return "\n".join(lines)


_SHORT = (
    "Sel@1 [95 %]", "F4 [95 %]", "p, max-T over all heads", "selectivity", "T: its two weights exchanged",
    "ES: its edge cut", "payoff-OV AUC", "training seeds",
)  # fmt: skip


def _claim(card: dict[str, Any]) -> str:
    head, link = f"L{card['layer']}H{card['head']}", _LINKS[card["site"]]
    said = f"({card['question']}): {card['verdict']}, {card['evidence_level']} ({LEVELS[card['evidence_level']]})."
    accuracy, best, blank = _share(card, "accuracy"), card["best_baseline"], card["untrained"]
    if card["verdict"] == NOT_ESTABLISHED:
        opening = f"No head is shown to link {link} {said} The likeliest, {head}, prefers the antecedent"
    else:
        verb = "links" if card["verdict"] == SUPPORTED else "may link"
        opening = f"Head {head} {verb} {link} {said} It prefers the antecedent"
    holdouts = _HOLDOUTS_ELSEWHERE if is_from_elsewhere(card["model"]) else _HOLDOUTS
    text = f"{opening} in {accuracy} of {card['n_items']} items {holdouts[card['holdout']]}"
    text += f"; the best that knows nothing ({best['name']}) in {_percent(best['accuracy'])}"
    text += f", untrained models in {_percent(blank['accuracy'])}" if blank else ""
    for said in ("missed", "not measured"):
        names = [one["name"] for one in card["criteria"] if _outcome(one) == said]
        text += f". Criteria {said}: {', '.join(names)}" if names else ""
    return f"{text}."


def _outcome(criterion: dict[str, Any]) -> str:
    if criterion["passed"]:
        return "met"
    return "not measured" if None in criterion["measured"].values() else "missed"


def _not_shown(card: dict[str, Any]) -> list[str]:
    """Return what a reader might take the card to say and it does not."""
    level = card["evidence_level"]
    found = ["understanding", "that this head index means anything in another run"]
    if level in ("E0", "E1", "E2"):
        found.append("that the model's answer comes by this head: attention alone is no cause")
    if is_from_elsewhere(card["model"]):
        found.append("that these words or frames were new to it: what it was trained on is not known")
    if not card["seeds"] or card["seeds"]["n"] < MIN_SEEDS:
        found.append(f"anything about models trained this way: one seed, where {MIN_SEEDS} are needed")
    if card["model"].get("token_shift"):
        found.append("that a head fetches the word before: model.token_shift hands it to every place without one")
    fewest = min(card["clusters"], key=card["clusters"].__getitem__)
    if card["intervals"]["accuracy"] and card["intervals"]["accuracy"][0] == card["intervals"]["accuracy"][1]:
        found.append("how rare failures are: none was seen, and resamplings of none show none")
    found.append(f"more words or frames than it rests on: {card['clusters'][fewest]} {fewest.replace('_', ' ')}")
    return found


def _rows(card: dict[str, Any]) -> list[tuple[str, str]]:
    scores, intervals, clusters = card["scores"], card["intervals"], card["clusters"]
    blank, best, p, seeds = card["untrained"], card["best_baseline"], card["p"], card["seeds"]
    behind = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in clusters.items())
    rows = [("head", f"L{card['layer']}H{card['head']}"), ("n", f"{card['n_items']} items: {behind}")]
    rows += [(label, _measured(scores[name], intervals[name])) for name, label in _LABELS.items()]
    rows.append(
        ("p, max-T over all heads", f"{_number(p['pair_accuracy'])} on F2, {_number(p['pronoun_contrast'])} on DD")
    )
    over = _interval(best["difference_interval"])
    rows.append((f"best baseline: {best['name']}", f"Sel@1 {_number(best['accuracy'])}; the head's minus it {over}"))
    if blank:
        rows.append((f"{blank['n_models']} untrained models", _measured(blank["accuracy"], blank["accuracy_interval"])))
    rows += [(name.replace("_", " "), _number(card[name])) for name in ("selectivity", "coreference_share")]
    for group in ("causal", "weights"):
        rows += [(label, _effect(card[group] or {}, name)) for name, label in _EFFECTS[group].items()]
    rows.append(("training seeds", f"{seeds['n_supported']} of {seeds['n']} supported" if seeds else "one"))
    return rows


_LABELS = {
    "accuracy": "Sel@1 [95 %]",
    "pair_accuracy": "F2 [95 %]",
    "block_accuracy": "F4 [95 %]",
    "pronoun_contrast": "DD [95 %]",
}
_EFFECTS = {
    "causal": {
        "head_effect": "E: the head resampled",
        "attention_swap": "T: its two weights exchanged",
        "edge_specificity": "ES: its edge cut",
        "denoising": "denoising: it alone put right",
    },
    "weights": {"ov_auc": "payoff-OV AUC"},
}


def _effect(group: dict[str, Any], name: str) -> str:
    return _measured(group.get(name), group.get(f"{name}_interval"))


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _measured(value: float | None, interval: list[float] | None) -> str:
    return _number(value) + (f" {_interval(interval)}" if interval else "")


def _share(card: dict[str, Any], name: str) -> str:
    value, interval = card["scores"][name], card["intervals"][name]
    within = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if _known(interval) else ""
    return _percent(value) + within


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _interval(interval: list[float] | None) -> str:
    return f"[{interval[0]:.3f}, {interval[1]:.3f}]" if interval and _known(interval) else "[no interval]"


def _number(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}"


def _known(interval: list[float] | None) -> bool:
    return interval is not None and all(one is not None and one == one for one in interval)
