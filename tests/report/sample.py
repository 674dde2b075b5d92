"""Contents of a page that no run is needed for: real layouts, seeded weights, and one head that learns to look."""

import re
from base64 import b64encode
from typing import Any

import numpy as np

from probe.sentences import FOUR_CELLS, TWINS, Asked, Sentence, dense, layout, written, written_words

N_LAYER, N_HEAD = 2, 4
STEPS = [0, 1, 2, 4, 8, 16, *range(24, 1201, 24)]
LINKS = (0, 1)  # the head that learns
NUL_TO_SURROGATE = "a\x00b\x1b[31m\ud800\u2028\u2029\u202eoff"
HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "\"'><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{script}}",
    "\\u003cscript\\u003ewindow.hacked=1",
    "${window.hacked=1}",
    "<a href=https://example.invalid/x>",
    "<style>@import 'https://example.invalid/y';*{display:none}</style>",
    "<base href=https://example.invalid/><meta http-equiv=refresh content=0;url=https://example.invalid>",
    "עברית وعربي",
    NUL_TO_SURROGATE,
    "w" * 10_000,
]


def cut(text: str) -> Sentence:
    """Cut at words, and a word of more than six letters in two, so that words and pieces differ."""
    words = [(one[0], one.span()) for one in re.finditer(r"\w+|[^\w\s]", text)]
    spans: list[tuple[int, int]] = []
    for _, (start, end) in words:
        middle = start + 5 if end - start > 6 else end
        spans += [(start, middle), (middle, end)] if middle < end else [(start, end)]
    return Sentence(list(range(len(spans) + 1)), spans, words)


def attention(length: int, seed: int, row: int, column: int | None, strength: float) -> np.ndarray:
    """Return weights [L, H, T, T] of heads that know nothing, but for one that at `row` looks at `column`."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(N_LAYER, N_HEAD, length, length)) * 1.2
    scores[..., 0] += 1.5  # the first token is a sink, as it is in real models
    if column is not None:
        scores[(*LINKS, row, column)] += 7 * strength
    scores[..., ~np.tri(length, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sentence(name: str, group: str, text: str, asked: Asked | None = None, film: int | None = None) -> dict[str, Any]:
    """Return a sentence as the page holds it."""
    seen = layout(cut(text), text)
    places = [seen.words.index(one) for one in (asked.word, asked.antecedent, asked.distractor)] if asked else []
    weights = _weights(seen.owner, places, 1.0)
    return {
        "id": name,
        "group": group,
        "title": f'at "{asked.word}": {asked.antecedent} is meant, not {asked.distractor}'
        if asked
        else "your sentence",
        "text": text,
        "pieces": seen.pieces,
        "words": seen.words,
        "owner": seen.owner,
        "asked": places[:1],
        "antecedents": places[1:2],
        "distractors": places[2:],
        "notes": [],
        "next": [["pounced", 0.31], ["purred", 0.22], ["prowled", 0.2]] if asked else [],
        "item": None,
        "weights": written(weights),
        "word_weights": written_words(weights, seen),
        "film": film,
    }


def _weights(owner: list[int], places: list[int], strength: float) -> np.ndarray:
    last = {word: token for token, word in enumerate(owner)}
    row, column = (last[places[0]], last[places[1]]) if places else (len(owner) - 1, None)
    return attention(len(owner), sum(places), row, column, strength)


def _rise(step: int) -> float:
    return float(1 / (1 + np.exp(-(step - 260) / 50)))


def film(asked: list[Asked]) -> dict[str, Any]:
    """Return the weights of each text at each step, in bytes."""
    texts = list(dict.fromkeys(one.text for one in asked))
    first = {one.text: one for one in reversed(asked)}
    data = []
    for step in STEPS:
        frame = []
        for text in texts:
            seen = layout(cut(text), text)
            places = [seen.words.index(one) for one in (first[text].word, first[text].antecedent)]
            frame.append(b64encode(dense(_weights(seen.owner, places, _rise(step)), np.uint8)).decode())
        data.append(frame)
    return {"steps": STEPS, "texts": texts, "data": data}


def _heads(seed: int, centre: float, spread: float, best: float) -> list[list[float]]:
    values = centre + spread * np.random.default_rng(seed).normal(size=(N_LAYER, N_HEAD))
    values[LINKS] = best
    return values.round(4).tolist()


def _curve(seed: int) -> dict[str, Any]:
    rises = [_rise(step) for step in STEPS]
    model = [round(1.42 + 5 * float(np.exp(-step / 60)) + 0.6 * (1 - rise), 4) for step, rise in zip(STEPS, rises)]  # noqa: B905
    return {
        "accuracy": [_heads(seed + i, 0.5, 0.03, round(0.5 + 0.49 * rise, 4)) for i, rise in enumerate(rises)],
        "pronoun_contrast": [_heads(seed + i, 0, 0.08, round(1.7 * rise, 4)) for i, rise in enumerate(rises)],
        "luck": [0.65 + 0.01 * (i % 3) for i in range(len(STEPS))],
        "rho": [round(-6 * float(np.exp(-step / 60)) + 0.94 * rise, 4) for step, rise in zip(STEPS, rises)],  # noqa: B905
        "best": [list(LINKS) for _ in STEPS],
        "payoff": {"model": model, "blind": [2.0794] * len(STEPS), "nearest": [2.0794] * len(STEPS),
                   "first": [2.0794] * len(STEPS), "bayes": [1.3863] * len(STEPS)},
    }  # fmt: skip


def _holdout(name: str, accuracy: float) -> dict[str, Any]:
    return {
        "name": name, "n": 920, "accuracy": accuracy, "accuracy_interval": [round(accuracy - 0.03, 4), min(1, accuracy + 0.02)],
        "block_accuracy": accuracy - 0.01, "block_accuracy_interval": [accuracy - 0.08, accuracy], "pronoun_contrast": 1.6715, "luck": 0.6913,
        "baselines": {"nearest": 0.5 if name != "distractors" else 0.0, "first": 0.5, "subject": 0.48, "uniform": 0.5},
        "knowing": {"sieve": 1.0},
        "untrained": {"accuracy": 0.4766, "interval": [0.4388, 0.519], "n": 10} if name in ("iid", "headline") else None,
    }  # fmt: skip


def asked_question(
    name: str, verdict: str, level: str, curve: str | None, shown: list[str], seed: int
) -> dict[str, Any]:
    """Return one question with all that a probe finds of it."""
    layer, head = LINKS
    good = verdict == "supported"
    accuracy = 0.9989 if good else 0.62
    criteria = [
        ("flips", {"p_pair_accuracy": 0.0005, "p_pronoun_contrast": 0.0005}, {"p_pair_accuracy": 0.01, "p_pronoun_contrast": 0.01}),
        ("beats baselines", {"over_best_low": 0.4929}, {"over_best_low": 0.0}),
        ("selective", {"selectivity": 0.4975}, {"selectivity": 0.15}),
        ("causal edge", {"attention_swap": 0.9891 if good else None, "edge_specificity_low": 1.0488},
         {"attention_swap": 0.2, "edge_specificity_low": 0.0}),
        ("rests", {"unlinked_mass": 0.1493}, {"unlinked_mass": 0.5}),
    ]  # fmt: skip
    reason = "" if good else "the model's answer is not shown to come by this edge: T not measured; needed: above 0.2"
    return {
        "name": name,
        "meaning": "at the pronoun, where number or gender has already decided",
        "site": name[-2:],
        "layer": layer,
        "head": head,
        "verdict": verdict,
        "evidence_level": level,
        "evidence": "its edge is causal" if good else "beats every baseline",
        "claim": f"Head L{layer}H{head} {'links' if good else 'may link'} a pronoun to its antecedent ({name}): "
        f"{verdict}, {level}. It prefers the antecedent in {100 * accuracy:.1f} % [99.3, 100.0] of 920 items whose nouns "
        "training never let a pronoun mean, in frames it never used; the best that knows nothing (nearest) in 50.0 %, "
        "untrained models in 47.7 %.",
        "criteria": [
            {"name": one, "measured": measured, "bars": bars, "passed": None not in measured.values(), "reason": reason}
            for one, measured, bars in criteria
        ],
        "reasons": [reason] if reason else [],
        "does_not_show": ["understanding", "that this head index means anything in another run"],
        "holdout": "headline",
        "heads": {
            "accuracy": _heads(seed, 0.5, 0.04, accuracy), "block_accuracy": _heads(seed + 1, 0.18, 0.05, accuracy - 0.01),
            "pronoun_contrast": _heads(seed + 2, 0, 0.2, 1.6715), "p": _heads(seed + 3, 0.7, 0.1, 0.0005 if good else 0.36),
        },
        "holdouts": [_holdout(one, accuracy) for one in ("iid", "nouns", "templates", "headline", "distractors")],
        "causal": [
            {"name": "attention_swap", "label": "T: its two weights exchanged", "value": 0.9891, "interval": [0.973, 1.015],
             "reads": "1: this head alone decides"},
            {"name": "ko_distractor", "label": "edge to the distractor cut", "value": -0.2375, "interval": [-0.3, -0.2],
             "reads": "near 0: it does not need it"},
            {"name": "zero", "label": "head set to zero", "value": None, "interval": None, "reads": "1: all is lost"},
        ],
        "cues": {"coreference": 1.6715, "first": 0.12, "pronoun": -0.3, "lexical": 0.08, "order": -0.05},
        "curve": curve,
        "sentences": shown,
    }  # fmt: skip


def content(*, own: list[str] | None = None) -> dict[str, Any]:
    """Return the content of a run of stories with three questions."""
    moving = film([*FOUR_CELLS, *TWINS])
    place = {text: i for i, text in enumerate(moving["texts"])}
    cells = [sentence(f"cells-{i}", "cells", one.text, one, place[one.text]) for i, one in enumerate(FOUR_CELLS)]
    twins = [sentence(f"twins-{i}", "twins", one.text, one, place[one.text]) for i, one in enumerate(TWINS)]
    median = [
        sentence(f"median-{i}", "median", one.text.replace("One sunny", "On a quiet winter"), one)
        for i, one in enumerate(FOUR_CELLS)
    ]
    for line, one in enumerate(median, 41):
        one |= {
            "title": "median of 230 blocks: a rule chose it, not a person",
            "item": {"question": "number", "line": line},
        }
    mine = [
        sentence(f"own-{i}", "own", text)
        for i, text in enumerate(own or ["The fox thanked the hen because it was kind."])
    ]
    mine[0]["notes"] = ['at "it" the model has not read "kind" yet: look at "kind" instead']
    first = [one["id"] for one in cells + median]
    return {
        "max_p": 0.01,
        "run": {
            "name": "default, seed 1", "step": 1200, "max_steps": 1200, "n_layer": N_LAYER, "n_head": N_HEAD,
            "d_model": 64, "context_length": 64, "n_parameters": 131_776, "data": "stories", "seed": 1,
            "departures": [],
            "environment": {"python": "3.11.2", "torch": "2.11.0", "commit": "1c91980"},
            "command": "python eval.py run=runs/default",
        },
        "notes": [],
        "questions": [
            asked_question("number", "supported", "E3", "number", first, 10),
            asked_question("number", "supported", "E3", None, first, 20),
            asked_question("later_cue", "suggestive", "E1", "later_cue", [one["id"] for one in twins], 30),
        ],
        "sentences": [*cells, *twins, *median, *mine],
        "emergence": {
            "steps": STEPS,
            "curves": {"number": _curve(100), "later_cue": _curve(300) | {"rho": None, "payoff": None}},
            "loss": {"steps": [0, 240, 480, 720, 960, 1200], "validation": [6.53, 1.6, 1.22, 1.14, 1.1, 1.09],
                     "floor": [1.0612] * 6},
            "film": moving,
        },
        "lab": None,
        "seeds": {
            "title": "Over five seeds",
            "header": ["question", "supported", "Sel@1 [95 %]"],
            "rows": [["number", "5 of 5", "0.998 [0.996, 1.000]"]],
            "note": "Heads are matched by what they do; their places differ.",
        },
        "resumed": ["At step 240 training went on with optim.learning_rate 0.01 instead of 0.02."],
        "caps": ["Curves are kept at 56 steps."],
    }  # fmt: skip


def hostile() -> dict[str, Any]:
    """Return the same with every text replaced by one that would like to be markup, a script or an address."""
    found = content()
    count = iter(range(10**9))

    def bad(value: Any, key: str = "") -> Any:
        if key in {
            "data",
            "id",
            "weights",
            "curves",
            "site",
            "verdict",
            "evidence_level",
            "film",
            "group",
            "curve",
            "holdout",
        }:
            return value
        if key == "sentences" and value and isinstance(value[0], str):
            return value
        if isinstance(value, dict):
            renamed = key in {"environment", "baselines", "knowing", "measured", "cues"}
            return {(f"{one}{_next(count)}" if renamed else one): bad(inner, one) for one, inner in value.items()}
        if isinstance(value, list):
            return [bad(inner, "words" if key in {"words", "pieces"} else "") for inner in value]
        return _next(count) if isinstance(value, str) else value

    found = bad(found)
    for one in found["questions"]:
        one["holdout"] = HOSTILE[0]
    return found


def _next(count: Any) -> str:
    return HOSTILE[next(count) % len(HOSTILE)]


def long(n_words: int = 511) -> dict[str, Any]:
    """Return the content with one more sentence of `n_words` words, whose weights are kept sparse."""
    return content(own=[" ".join(["it", "was", "a", "cat"][i % 4] for i in range(n_words))])


def no_questions() -> dict[str, Any]:
    """Return the content of a run of plain texts: nothing is asked, nothing was kept while it trained."""
    found = content()
    own = [one for one in found["sentences"] if one["group"] == "own"]
    notes = ["Nothing is asked of a model of plain texts: the page shows where it looks."]
    return found | {"questions": [], "sentences": own, "emergence": None, "seeds": None, "notes": notes}


def bare() -> dict[str, Any]:
    """Return the content of a run that was never probed and of which no sentence is kept."""
    return no_questions() | {
        "sentences": [],
        "notes": ["this run has not been probed: python eval.py run=runs/default"],
    }
