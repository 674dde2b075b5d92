"""Page contents without a run: the worked examples with random attention, in which example head learns to link."""

from base64 import b64decode
from itertools import cycle
from typing import Any

import numpy as np

from data.words import word_spans
from probe.sentences import SHOWCASE, Example, TokenizedText, pack_weights

N_LAYER, N_HEAD = 2, 4
LINK_HEAD = (0, 1)
STEPS = [0, 1, 2, 4, 8, 16, *range(100, 1201, 100)]
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "\"'><svg onload=window.hacked=1>",
    "{{script}}",
    "<style>@import 'https://example.invalid/y';*{display:none}</style>",
    "<base href=https://example.invalid/><meta http-equiv=refresh content=0;url=https://example.invalid>",
    "a\x00b\x1b[31m\ud800\u2028\u202eoff",
    "w" * 10_000,
)


def tokenized(text: str) -> TokenizedText:
    """Tokenizes a text into its words."""
    spans = [span for _, span in word_spans(text)]
    return TokenizedText(text, list(range(len(spans) + 1)), spans, spans)


def attention(n_words: int, query: int | None = None, target: int = 0, strength: float = 1.0) -> np.ndarray:
    """Returns causal weights [L, H, W, W]; from `query` the link head attends to `target` with growing `strength`."""
    scores = np.random.default_rng(n_words).normal(size=(N_LAYER, N_HEAD, n_words, n_words))
    if query is not None:
        scores[(*LINK_HEAD, query, target)] += 8 * strength
    scores[..., ~np.tri(n_words, dtype=bool)] = -np.inf
    weights = np.exp(scores)
    return weights / weights.sum(axis=-1, keepdims=True)


def unpacked(data: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the weights [L, H, W, W] that `pack_weights` packed; shape: (L, H, W)."""
    n_layer, n_head, n_words = shape
    weights = np.zeros((n_layer, n_head, n_words, n_words))
    rows, columns = np.tril_indices(n_words)
    weights[..., rows, columns] = np.frombuffer(b64decode(data), "<u2").reshape(n_layer, n_head, -1) / 65535
    return weights


def positions(example: Example) -> list[int]:
    """Returns the words of query, antecedent and distractor."""
    words = tokenized(example.text).words
    return [words.index(word) for word in (example.query, example.antecedent, example.distractor)]


def sentence(
    name: str, group: str, text: str, example: Example | None = None, snapshot: int | None = None
) -> dict[str, Any]:
    """Returns a sentence as `report.content.sentence_content` does."""
    words = tokenized(text).words
    query = positions(example) if example else []
    return {
        "id": name, "group": group, "title": f"Sentence {name}.", "text": text, "words": words,
        "query": query[:1], "antecedents": query[1:2], "distractors": query[2:],
        "notes": [] if example else ["A note."],
        "next": [["pounced", 0.31], ["purred", 0.22]], "snapshot": snapshot,
        "weights": pack_weights(attention(len(words), *query[:2])),
    }  # fmt: skip


def heads(seed: int, centre: float, link: float) -> list[list[float]]:
    """Returns a score [L][H] near `centre`, and `link` for the link head."""
    values = centre + 0.04 * np.random.default_rng(seed).normal(size=(N_LAYER, N_HEAD))
    values[LINK_HEAD] = link
    return values.round(4).tolist()


def holdout(accuracy: float) -> dict[str, Any]:
    """Returns `test.<holdout>` of probe.json."""
    ends = [accuracy - 0.03, accuracy]
    return {
        "n_items": 920, "chance_level": 0.69, "accuracy": accuracy, "accuracy_interval": ends,
        "block_accuracy": accuracy - 0.01, "block_accuracy_interval": ends, "pronoun_contrast": 1.6715,
        "strict_accuracy": 0.9, "p_corrected": 0.0005,
        "baselines": {"nearest": {"accuracy": 0.5}, "agreement sieve": {"accuracy": 1.0}},
        "untrained": {"n_models": 2, "accuracy": 0.4766, "accuracy_range": [0.4388, 0.519]},
    }  # fmt: skip


def question(name: str, verdict: str) -> dict[str, Any]:
    """Returns a question as `report.content.question_content` does."""
    accuracy = 0.9989 if verdict == "supported" else 0.62
    layer, head = LINK_HEAD
    return {
        "question": name, "description": '"it" or "they", read at the pronoun', "layer": layer, "head": head,
        "family": "agreement" if name == "number" else "later_cue", "verdict": verdict, "evidence_level": "E3",
        "holdout": "headline", "sentences": [f"{name}-{i}" for i, _ in enumerate(SHOWCASE[name], 1)],
        "claim": f"Attention head L{layer}H{head} links a pronoun to its antecedent. It is right in {accuracy:.1%}.",
        "criteria": [
            {"name": "beats_baselines", "measured": {"lead_low": 0.49}, "bars": {"lead_low": 0}, "outcome": "met"},
            {"name": "causal_edge", "measured": {"attention_swap": None}, "bars": {"attention_swap": 0.2},
             "outcome": "not measured"},
        ],
        "reasons": ["attention swap not measured; required: above 0.2"], "does_not_show": ["understanding"],
        "heads": {"accuracy": heads(1, 0.5, accuracy), "block_accuracy": heads(2, 0.18, accuracy),
                  "pronoun_contrast": heads(3, 0, 1.6715), "p": heads(4, 0.7, 0.0005)},
        "test": {name: holdout(accuracy) for name in ("iid", "headline")},
        "causal": {"attention_swap": 0.9891, "attention_swap_interval": [0.97, 1.01], "distractor_edge_ablation": -0.2,
                   "controls": {"attention_swap": [0.01, -0.2, None]}},
        "weights": None, "similar": [{"layer": 1, "head": 2, "r": 0.81}], "ablation": "import torch\nedit = None",
        "head_set": {"reached": True, "attention_swap": 0.99, "attention_swap_interval": [0.97, 1.01],
                     "curve": [{"layer": 0, "head": 1, "dev": 0.98, "test": 0.99}]},
    }  # fmt: skip


def training() -> dict[str, Any]:
    """Returns curves and snapshots in which the link head appears around step 600."""
    rise = [float(1 / (1 + np.exp(-(step - 600) / 80))) for step in STEPS]
    first = {example.text: example for examples in SHOWCASE.values() for example in reversed(examples)}
    links = [(len(tokenized(text).words), *positions(example)[:2]) for text, example in first.items()]
    curves = {
        "accuracy": [heads(i, 0.5, 0.5 + 0.49 * share) for i, share in enumerate(rise)],
        "pronoun_contrast": [heads(i, 0, 1.7 * share) for i, share in enumerate(rise)],
        "chance_level": [0.65] * len(STEPS),
        "resolved_share": [-6 * (1 - share) + share for share in rise],
    }
    data = [[pack_weights(attention(*link, strength=share)) for link in links] for share in rise]
    return {
        "steps": STEPS,
        "curves": {
            "number": curves | {"answer_accuracy": rise},
            "later_cue": curves | {"resolved_share": None, "answer_accuracy": rise},
        },
        "natural": [
            {
                "question": "gender",
                "contrast": curves["pronoun_contrast"],
                "chosen": [
                    {"target": "matching entity", "layer": 0, "head": 1},
                    {"target": "other entity", "layer": 1, "head": 0},
                ],
            }
        ],
        "next_pronoun": [
            {
                "question": "gender",
                "layer": 1,
                "head": 0,
                "share": curves["accuracy"],
                "follows_twin": rise,
                "margin": rise,
            }
        ],
        "loss": {"steps": [0, 600, 1200], "validation": [6.5, 1.2, 1.09], "floor": [1.06] * 3},
        "snapshots": {"texts": list(first), "steps": STEPS, "data": data},
    }


def content(texts: tuple[str, ...] = ("The fox thanked the hen because it was kind.",)) -> dict[str, Any]:
    """Returns the content of a page with two questions, both worked examples and the user's sentences."""
    curves = training()
    place = {text: i for i, text in enumerate(curves["snapshots"]["texts"])}
    sentences = [
        sentence(f"{group}-{i}", group, example.text, example, place[example.text])
        for group, examples in SHOWCASE.items()
        for i, example in enumerate(examples, 1)
    ]
    sentences += [sentence(f"yours-{i}", "yours", text) for i, text in enumerate(texts, 1)]
    return {
        "run": {"name": "default", "step": "step 1,200", "facts": "2 layers", "n_layer": N_LAYER, "n_head": N_HEAD,
                "environment": {"python": "3.11"}, "commands": ["python train.py", "python eval.py"]},
        "notes": ["A note on top."],
        "max_p": 0.01,
        "questions": [question("number", "supported"), question("later_cue", "suggestive")],
        "sentences": sentences,
        "training": curves,
        "opening": None,
        "next_pronoun": [{"verdict": "supported", "claim": "Attention head L1H0 decides. It is she or he."}],
        "natural": [["suggestive", "Head L1H0 may turn to the antecedent. Contrast 0.4, corrected p 0.0010."]],
        "tables": [{"title": "Answers", "header": ["question", "items"], "rows": [["number", "560"]], "note": ""}],
        "resumed": ["Resumed at step 240 with optim.learning_rate 0.01 (before: 0.02)."],
        "omissions": [],
    }  # fmt: skip


def without_probe() -> dict[str, Any]:
    """Returns the content of a run whose heads were not tested."""
    page = content()
    yours = [example for example in page["sentences"] if example["group"] == "yours"]
    return page | {
        "questions": [],
        "next_pronoun": [],
        "natural": [],
        "sentences": yours,
        "training": None,
        "tables": [],
    }


def hostile() -> dict[str, Any]:
    """Returns the content with every free text replaced by a string that tries to become markup or a script."""
    texts = cycle(HOSTILE)
    free = {"name", "title", "text", "words", "notes", "next", "description", "claim", "reasons", "label",
            "does_not_show", "meaning", "commands", "environment", "header", "rows", "note", "resumed", "omissions",
            "facts", "step", "natural"}  # fmt: skip

    def attack(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: attack(inner, name if key != "environment" else key) for name, inner in value.items()}
        if isinstance(value, list):
            return [attack(inner, key) for inner in value]
        return next(texts) if isinstance(value, str) and key in free else value

    page = attack(content(), "")
    for question_content, name in zip(page["questions"], ("number", "later_cue"), strict=True):
        question_content["question"] = HOSTILE[0] + name
    return page | {"training": content()["training"]}
