"""Everything the page and the figures show of a run, as one dictionary of plain values, small enough for one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from data.links import ORACLES
from probe.baselines import REFERENCE_RULES
from probe.items import QUESTIONS
from probe.study import HEADLINE
from probe.verdict import LEVELS, MAX_P, corrected_p, finite

_DECIMALS = 4  # of what is drawn: a share of 920 items needs three


# Of what tables print: they round to three once more, and .52850 of .5285016 would become .528, not .529.
_PRINTED_DECIMALS = 6


# Below, so many digits: 20 of 2,001 resamplings are a p of .009995, which must not become the .01 that it is below.
_SMALL = 0.01


_MOST_FILM = 1_500_000  # characters of base64; a page of a default run holds 3 MB at most


_MOST_SENTENCES = 4_000_000  # the same, of the weights of all sentences; a long text takes 1,300,000


Sentences = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What there is to show of a run; what was not measured is None or empty."""

    run: Mapping[str, Any]  # what it is
    sentences: Sequence[Sentences]  # of `report.sentences`: what belongs together, the most important first
    shown: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the sentences of each question, by id
    probe: Mapping[str, Any] | None = None  # its probe.json
    cards: Sequence[Mapping[str, Any]] = ()  # its claims.json
    metrics: Sequence[Mapping[str, Any]] = ()  # its metrics.jsonl
    film: Mapping[str, Any] | None = None  # its attention.jsonl: texts, steps, data
    lab: Mapping[str, Any] | None = None  # the table of the comparison that it is part of
    seeds: Mapping[str, Any] | None = None  # the same over seeds
    notes: Sequence[str] = field(default_factory=list)  # what is missing and how to get it
    resumed: Sequence[str] = ()  # a sentence for each time that training went on with something changed


def content(found: Found) -> dict[str, Any]:
    """Return what a page is made of: finite, `rounded` and cut to size, every cut said under "caps"."""
    caps: list[str] = []
    film = _film(found.film, caps)
    sentences = [one | {"film": _scene(film, one["text"])} for one in _within(found.sentences, caps)]
    selected = found.probe["selected"] if found.probe else []
    every = {
        "run": found.run,
        "notes": found.notes,
        "max_p": MAX_P,
        "questions": [_question(one, found, {each["id"] for each in sentences}) for one in selected],
        "sentences": sentences,
        "emergence": _emergence(found.metrics, film),
        "lab": found.lab,
        "seeds": found.seeds,
        "resumed": found.resumed,
        "caps": caps,
    }
    return rounded(every) | {"questions": rounded(every["questions"], _PRINTED_DECIMALS)}


def rounded(value: Any, decimals: int = _DECIMALS) -> Any:
    """Return `value` as JSON can hold it, every float to so many decimals, below .01 to so many digits."""
    value = finite(value)
    if isinstance(value, dict):
        return {key: rounded(one, decimals) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one, decimals) for one in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.{decimals}g}") if abs(value) < _SMALL else round(value, decimals)


def _within(groups: Sequence[Sentences], caps: list[str]) -> Sentences:
    """Return the sentences for which there is room, in order; what belongs together is kept or left out together."""
    kept: Sentences = []
    room = _MOST_SENTENCES
    for some in groups:
        size = sum(len(held["data"]) for one in some for held in _held(one))
        if size <= room:
            room -= size
            kept += some
    n_lost = sum(map(len, groups)) - len(kept)
    if n_lost:
        caps.append(f"{n_lost} sentences are left out: a page holds {_MOST_SENTENCES:,} characters of weights.")
    cut = sorted({held["kept"] for one in kept for held in _held(one) if held["kept"]})
    if cut:
        numbers = " to ".join(map(str, dict.fromkeys((cut[0], cut[-1]))))
        caps.append(
            f"Of a text of more than 64 tokens each row keeps its {numbers} largest weights; others are a dash."
        )
    return kept


def _held(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a sentence keeps of its weights: of its pieces and, of a long text, of its words."""
    return [held for held in (one["weights"], one["word_weights"]) if held]


def _film(film: Mapping[str, Any] | None, caps: list[str]) -> dict[str, Any] | None:
    """Return the film as the page holds it, every n-th step and the last where there is no room for all."""
    if not film or not film["steps"]:
        return None
    size, n_steps = sum(len(data) for step in film["data"] for data in step), len(film["steps"])
    stride = -(-size // _MOST_FILM)
    kept = sorted({*range(0, n_steps, max(1, stride)), n_steps - 1})
    if len(kept) < n_steps:
        caps.append(f"Of the film of training {len(kept)} of {n_steps} steps are kept, evenly spread over them.")
    return {
        "steps": [film["steps"][i] for i in kept],
        "texts": [one["text"] for one in film["texts"]],
        "data": [film["data"][i] for i in kept],
    }


def _scene(film: Mapping[str, Any] | None, text: str) -> int | None:
    return film["texts"].index(text) if film and text in film["texts"] else None


def _question(one: Mapping[str, Any], found: Found, present: Set[str]) -> dict[str, Any]:
    """Return what is shown of one question: the card's words, the map of every head, the hold-outs and the causes."""
    name, heads, curve = one["question"], one["heads"], one["question"]
    card = next((card for card in found.cards if card["question"] == name), None)
    return {
        "name": name,
        "meaning": next((question.description for question in QUESTIONS if question.name == name), ""),
        **{key: one[key] for key in ("site", "layer", "head", "verdict", "evidence_level", "criteria", "reasons")},
        "evidence": LEVELS[one["evidence_level"]],
        "claim": card["claim"] if card else "",
        "does_not_show": card["does_not_show"] if card else [],
        "holdout": HEADLINE,
        "heads": {key: heads[key] for key in ("accuracy", "block_accuracy", "pronoun_contrast")}
        | {"p": corrected_p(heads)},
        "holdouts": [_holdout(holdout, tested) for holdout, tested in one["test"].items()],
        "causal": _causal(one["causal"] or {}),
        "cues": None if None in one["cues"].values() else one["cues"],
        "curve": curve if any(curve in record for record in found.metrics) else None,
        "sentences": [each for each in found.shown.get(name, ()) if each in present],
    }


def _holdout(name: str, tested: Mapping[str, Any]) -> dict[str, Any]:
    blank = tested.get("untrained")
    rules = {rule: scores["accuracy"] for rule, scores in tested["baselines"].items()}
    return {
        "name": name,
        "n": tested["n_items"],
        **{
            key: tested[key]
            for key in (
                "accuracy",
                "accuracy_interval",
                "block_accuracy",
                "block_accuracy_interval",
                "pronoun_contrast",
            )
        },
        "luck": tested["chance_level"],
        "baselines": {rule: accuracy for rule, accuracy in rules.items() if rule not in REFERENCE_RULES},
        "knowing": {rule: accuracy for rule, accuracy in rules.items() if rule in REFERENCE_RULES},
        "untrained": {"accuracy": blank["accuracy"], "interval": blank["accuracy_interval"], "n": blank["n_models"]}
        if blank
        else None,
    }


# Name in probe.json, what is done, how to read it; in the order in which they are told.
_EFFECTS = (
    ("attention_swap", "T: its two weights exchanged", "share of the answer that turns; 1: this head alone decides"),
    ("edge_specificity", "ES: its edge cut", "harm of cutting the edge to the antecedent, less that of the other edge"),
    ("head_effect", "E: the head resampled", "share of the answer lost when the head says what it says elsewhere"),
    ("denoising_patch", "denoising: it alone put right", "share of the answer that comes back; 1: this head suffices"),
    ("zero_ablation", "the head set to zero", "share of the answer lost; a lower bound, for later layers repair"),
)


def _causal(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the effects as shares of what the partner sentence would change, and T of other heads beside them."""
    shown = [
        {
            "name": name,
            "label": label,
            "value": found.get(name),
            "interval": found.get(f"{name}_interval"),
            "reads": how,
        }
        for name, label, how in _EFFECTS
    ]
    others = [one for one in (found.get("controls") or {}).get("attention_swap", ()) if one is not None]
    if others:
        label, how = f"T of {len(others)} other heads of its layer, the largest", "what any head would show"
        value = max(others, key=abs)
        shown.append({"name": "attention_swap_others", "label": label, "value": value, "interval": None, "reads": how})
    return shown


def _emergence(metrics: Sequence[Mapping[str, Any]], film: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the curves of training; None of a run that recorded none."""
    probes = [one for one in metrics if one["split"] == "probe"]
    # null: it was not finite, in steps that were skipped
    losses = [one for one in metrics if one["split"] == "validation" and one["loss"] is not None]
    if not losses:
        return None
    floors = [one.get("floor") for one in losses]
    names = [question.name for question in QUESTIONS if question.watched]
    return {
        "steps": [one["step"] for one in probes],
        "curves": {name: _curves(name, probes) for name in names if probes and all(name in one for one in probes)},
        "loss": {
            "steps": [one["step"] for one in losses],
            "validation": [one["loss"] for one in losses],
            "floor": None if None in floors else floors,
        },
        "film": film,
    }


def _curves(name: str, probes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [one[name] for one in probes]
    payoffs = [one.get(f"{name}_payoff") for one in probes]
    readers = [reader for reader in ("model", *ORACLES) if all(one and reader in one for one in payoffs)]
    return {
        "accuracy": [one["accuracy_heads"] for one in own],
        "pronoun_contrast": [one["pronoun_contrast_heads"] for one in own],
        "luck": [one["luck"] for one in own],
        "rho": [one["rho"] for one in own] if all("rho" in one for one in own) else None,
        "best": [[one["layer"], one["head"]] for one in own],
        "payoff": {reader: [one[reader] for one in payoffs if one] for reader in readers} if readers else None,
    }
