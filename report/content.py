"""Everything the report page and the figures show of a model, as one JSON value that fits into one file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.stories.lint import lint
from probe.baselines import REFERENCE_RULES
from probe.open import OpenedModel
from probe.sentences import FOUR_CELLS, TIRED_OR_SOFT, Example, TokenizedText, next_tokens, pack_weights, word_attention
from probe.study import HEADLINE
from probe.verdict import LEVELS, MAX_P, corrected_p
from report.tables import DESCRIPTIONS

MAX_SENTENCE_CHARACTERS = 3_000_000  # base64 of the attention weights of all sentences
MAX_SNAPSHOT_CHARACTERS = 1_500_000

SHOWN_EXAMPLES = {"number": ("four_cells", FOUR_CELLS), "later_cue": ("tired_or_soft", TIRED_OR_SOFT)}

# Name in probe.json, label, how to read the number.
EFFECTS = (
    ("attention_swap", "attention swap", "share of the answer that flips when the head's weights on antecedent and "
     "distractor are exchanged; 1: this head alone decides"),
    ("edge_ablation", "edge to the antecedent cut", "share of the answer lost"),
    ("distractor_edge_ablation", "edge to the distractor cut", "share of the answer lost; near 0 for a link head"),
    ("edge_specificity", "edge specificity", "loss from cutting the edge to the antecedent minus the other edge"),
    ("head_effect", "output of the partner sentence", "share of the answer lost when the head's output comes from the "
     "same sentence with the other pronoun"),
    ("zero_ablation", "no output", "share of the answer lost without the head; later layers may compensate"),
    ("denoising_patch", "denoising patch", "share of the answer restored when only this head is restored; 1: the head "
     "suffices"),
)  # fmt: skip


@dataclass(frozen=True)
class ProbeResults:
    """What a probe wrote: probe.json, claims.json and items.jsonl."""

    results: Mapping[str, Any]
    cards: Sequence[Mapping[str, Any]]
    items: str


@dataclass(frozen=True)
class RunFiles:
    """What else the page shows of a run; empty for an external model."""

    metrics: Sequence[Mapping[str, Any]] = ()  # metrics.jsonl
    snapshots: Mapping[str, Any] | None = None  # attention.jsonl: {"texts", "steps", "data"}
    tables: Sequence[Mapping[str, Any]] = ()  # tables of the run's sweep: {"title", "header", "rows", "note"}


def page_content(
    opened: OpenedModel,
    probed: ProbeResults | None,
    texts: Sequence[str] = (),
    files: RunFiles = RunFiles(),  # noqa: B008
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of the page; finite, and with a note for everything that was left out for its size.

    Args:
        opened: the model; every sentence is read by it now.
        probed: results for this checkpoint (default: none, and no claim is shown).
        texts: the user's own sentences.
        files: records of the training run.
        notes: shown on top of the page.

    """
    omissions: list[str] = []
    results = probed.results if probed else {"selected": [], "warnings": []}
    medians = {entry["question"]: median_block(opened, entry, probed.items) for entry in results["selected"] if probed}
    examples = {name: example_sentences(opened, *shown) for name, shown in SHOWN_EXAMPLES.items()}
    groups = [*([own_sentence(opened, i, text)] for i, text in enumerate(texts, 1)), *examples.values()]
    sentences = within_size([*groups, *medians.values()], omissions)
    snapshots = thinned(files.snapshots, omissions)
    places = {text: i for i, text in enumerate(snapshots["texts"])} if snapshots else {}
    for sentence in sentences:
        sentence["snapshot"] = places.get(sentence["text"])
    ids = {sentence["id"] for sentence in sentences}
    return jsonable({
        "run": about(opened),
        "notes": [*notes, *(results["warnings"] if opened.is_external else ())],
        "max_p": MAX_P,
        "questions": [
            question_content(entry, probed.cards)
            | {"sentences": [shown["id"] for group in (examples.get(entry["question"], ()), medians[entry["question"]])
                             for shown in group if shown["id"] in ids]}
            for entry in results["selected"] if probed
        ],
        "sentences": sentences,
        "training": training_content(files.metrics, snapshots),
        "tables": files.tables,
        "resumed": opened.resumed,
        "omissions": omissions,
    })  # fmt: skip


def about(opened: OpenedModel) -> dict[str, Any]:
    """Return the name, training state, shape and provenance of a model."""
    shape = ("n_layer", "n_head", "context_length")
    return {
        **{name: getattr(opened, name) for name in ("name", "seed", "step", "max_steps", "n_parameters", "command")},
        **{name: getattr(opened.model, name) for name in shape},
        "d_model": opened.shape["d_model"],
        "data": None if opened.is_external else opened.data.source,
        "departures": opened.departures,
        "environment": opened.environment,
    }


def jsonable(value: Any) -> Any:
    """Return `value` as strict JSON can hold it: numbers with six significant digits, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


# Sentences


def sentence_content(
    opened: OpenedModel,
    text: TokenizedText,
    *,
    name: str,
    title: str,
    query: Sequence[int] = (),
    antecedents: Sequence[int] = (),
    distractors: Sequence[int] = (),
    predicts: bool = False,
) -> dict[str, Any]:
    """Return what the page holds of one sentence.

    Args:
        opened: the model.
        text: at most as long as the model's context.
        name: group and number, for the address (report.html#yours-1); a group is shown side by side.
        title: one line about the sentence.
        query: words at which heads are read, as indices into `text.words`; the first is selected on the page.
        antecedents: words the query refers to.
        distractors: the other candidates.
        predicts: whether to show the most probable next tokens.

    """
    following = next_tokens(opened.model, text.tokens, 5) if predicts else []
    return {
        "id": name,
        "group": name.split("-")[0],
        "title": title,
        "text": text.text,
        "words": text.words,
        "query": list(query),
        "antecedents": list(antecedents),
        "distractors": list(distractors),
        "notes": [],
        "next": [[opened.decode(token), probability] for token, probability in following],
        "weights": pack_weights(word_attention(opened.model, text)),
    }


def example_sentences(opened: OpenedModel, group: str, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Return the sentences of a worked example; none if the model cannot read all of them."""
    texts = [opened.tokenize(example.text) for example in examples]
    if any(unknown_words(opened, text) or not opened.fits(text) for text in texts):
        return []
    sentences = []
    for i, (example, text) in enumerate(zip(examples, texts, strict=True), 1):
        nouns = (example.antecedent, example.distractor)
        query, antecedent, distractor = (text.words.index(word) for word in (example.query, *nouns))
        title = "At “{}”: the antecedent is “{}”, the distractor “{}”.".format(example.query, *nouns)
        roles: dict[str, Any] = {"query": [query], "antecedents": [antecedent], "distractors": [distractor]}
        predicts = example.text.endswith(example.query)
        name = f"{group}-{i}"
        sentences.append(sentence_content(opened, text, name=name, title=title, predicts=predicts, **roles))
    return sentences


def median_block(opened: OpenedModel, entry: Mapping[str, Any], items: str) -> list[dict[str, Any]]:
    """Return the four sentences of a question's median block, found in items.jsonl."""
    median, question = entry["median"], entry["question"]
    wanted = (question, median["holdout"], median["block"])
    lines = items.splitlines()
    records = [(i, json.loads(line)) for i, line in enumerate(lines, 1) if f'"block": {median["block"]},' in line]
    cells = [(i, item) for i, item in records if (item["question"], item["holdout"], item["block"]) == wanted]
    if len(cells) != 4:
        raise ValueError("items.jsonl lacks the median block")
    sentences = []
    for cell, (line, item) in enumerate(cells, 1):
        text = opened.tokenize(item["text"])
        word_of_token = text.word_of_token
        title = f"Cell {cell} of 4 of the median of {median['n_blocks']} blocks (line {line} of items.jsonl)."
        roles: dict[str, Any] = {
            name: [word_of_token[span[0]] for span in item[name]] for name in ("antecedents", "distractors")
        }
        roles["query"] = [word_of_token[item["query"]]]
        sentences.append(sentence_content(opened, text, name=f"median-{question}-{cell}", title=title, **roles))
    return sentences


def own_sentence(opened: OpenedModel, number: int, text: str) -> dict[str, Any]:
    """Return the user's sentence; heads are read at its pronouns and at later words that decide what those are."""
    tokenized, notes = opened.tokenize(text), lint(text)
    spans = [span for note in notes for span in (note.clue, note.span) if span]
    query = list(dict.fromkeys(1 + tokenized.word_spans.index(span) for span in spans))
    about: dict[str, Any] = {"name": f"yours-{number}", "title": "Your sentence.", "query": query}
    sentence = sentence_content(opened, tokenized, predicts=True, **about)
    return sentence | {"notes": [*unknown_note(opened, tokenized), *(note.note for note in notes)]}


def unknown_words(opened: OpenedModel, text: TokenizedText) -> list[str]:
    """Return the pieces of a text that the tokenizer replaces by its token for unknown words, each once."""
    pieces = zip(text.tokens[1:], text.spans, strict=True)
    return list(dict.fromkeys(text.text[slice(*span)] for token, span in pieces if token == opened.unknown))


def unknown_note(opened: OpenedModel, text: TokenizedText) -> list[str]:
    """Return a note that names the words outside the vocabulary, if there are any."""
    words = unknown_words(opened, text)
    return [f"Not in the model's vocabulary, so read as the unknown word: {', '.join(words)}."] if words else []


def within_size(groups: Sequence[list[dict[str, Any]]], omissions: list[str]) -> list[dict[str, Any]]:
    """Return the sentences for which there is room, in order; a group is selected or left out as a whole."""
    selected: list[dict[str, Any]] = []
    room = MAX_SENTENCE_CHARACTERS
    for group in groups:
        size = sum(len(sentence["weights"]) for sentence in group)
        if size <= room:
            room -= size
            selected += group
    if n_omitted := sum(map(len, groups)) - len(selected):
        omissions.append(f"{n_omitted} sentences: the page holds {MAX_SENTENCE_CHARACTERS:,} characters of weights.")
    return selected


# Training


def thinned(snapshots: Mapping[str, Any] | None, omissions: list[str]) -> dict[str, Any] | None:
    """Return the snapshots as the page holds them: every n-th step and the last if there is no room for all."""
    if not snapshots or not snapshots["steps"]:
        return None
    n_steps = len(snapshots["steps"])
    size = sum(len(data) for step in snapshots["data"] for data in step)
    selected = sorted({*range(0, n_steps, max(1, math.ceil(size / MAX_SNAPSHOT_CHARACTERS))), n_steps - 1})
    if len(selected) < n_steps:
        omissions.append(f"{n_steps - len(selected)} of {n_steps} snapshots of training; {len(selected)} are selected.")
    return {
        "texts": [text["text"] for text in snapshots["texts"]],
        "steps": [snapshots["steps"][i] for i in selected],
        "data": [snapshots["data"][i] for i in selected],
    }


def training_content(
    metrics: Sequence[Mapping[str, Any]], snapshots: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the curves of training from metrics.jsonl; None without a validation loss."""
    probes = [record for record in metrics if record["split"] == "probe"]
    losses = [record for record in metrics if record["split"] == "validation" and record["loss"] is not None]
    if not losses:
        return None
    floors = [record.get("floor") for record in losses]
    names = [name for name in DESCRIPTIONS if probes and all(name in record for record in probes)]
    return {
        "steps": [record["step"] for record in probes],
        "curves": {name: head_curves([record[name] for record in probes]) for name in names},
        "loss": {
            "steps": [record["step"] for record in losses],
            "validation": [record["loss"] for record in losses],
            "floor": None if None in floors else floors,
        },
        "snapshots": snapshots,
    }


def head_curves(readings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the curves of one question: scores of all heads [S][L][H], chance level and resolved share [S]."""
    names = {"accuracy": "accuracy_heads", "pronoun_contrast": "pronoun_contrast_heads", "chance_level": "chance_level"}
    curves = {curve: [reading[name] for reading in readings] for curve, name in names.items()}
    shares = [reading.get("resolved_share") for reading in readings]
    return curves | {"resolved_share": None if None in shares else shares}


# Questions


def question_content(entry: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the page shows of one entry of probe.json's `selected`: claim, heads, hold-outs and effects."""
    name, heads = entry["question"], entry["heads"]
    card: Mapping[str, Any] = next((card for card in cards if card["question"] == name), {})
    copied = ("layer", "head", "verdict", "evidence_level", "criteria", "reasons")
    return {
        "name": name,
        "description": DESCRIPTIONS[name],
        **{key: entry[key] for key in copied},
        "evidence": LEVELS[entry["evidence_level"]],
        "claim": card.get("claim", ""),
        "does_not_show": card.get("does_not_show", []),
        "holdout": HEADLINE,
        "heads": {key: heads[key] for key in ("accuracy", "block_accuracy", "pronoun_contrast")}
        | {"p": corrected_p(heads)},
        "holdouts": [holdout_content(holdout, tested) for holdout, tested in entry["test"].items()],
        "effects": effects_content(entry),
        "cues": None if None in entry["cues"].values() else entry["cues"],
    }


def holdout_content(name: str, tested: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of the hold-out table."""
    scores = ("accuracy", "accuracy_interval", "block_accuracy", "block_accuracy_interval", "pronoun_contrast")
    return {
        "name": name,
        **{key: tested[key] for key in ("n_items", "chance_level", *scores)},
        "baselines": {
            rule: scores["accuracy"] for rule, scores in tested["baselines"].items() if rule not in REFERENCE_RULES
        },
        "untrained": tested.get("untrained"),
    }


def effects_content(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the causal effects of a head with their intervals, and the largest attention swap of the control heads."""
    causal = entry["causal"] or {}
    effects = [(label, causal.get(name), causal.get(f"{name}_interval"), meaning) for name, label, meaning in EFFECTS]
    swaps = [value for value in (causal.get("controls") or {}).get("attention_swap", ()) if value is not None]
    if swaps:
        label = f"attention swap of {len(swaps)} other heads"
        meaning = "the largest of them: what any head of this layer would show"
        effects.insert(1, (label, max(swaps, key=abs), None, meaning))
    names = ("label", "value", "interval", "meaning")
    return [dict(zip(names, effect, strict=True)) for effect in effects if effect[1] is not None]
