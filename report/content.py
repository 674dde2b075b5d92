"""Everything the report page and the figures show of a model, as one JSON value that fits into one file."""

import json
import math
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from data.stories.lint import lint
from probe.claim import claim_card
from probe.open import OpenedModel, OpenedRun
from probe.sentences import SHOWCASE, TokenizedText, next_tokens, pack_weights, word_attention
from probe.study import HEADLINE
from probe.verdict import MAX_P, NOT_ESTABLISHED, corrected_p
from report.natural import natural_claims, natural_tables
from report.next_pronoun import next_pronoun_claim, next_pronoun_tables
from report.tables import DESCRIPTIONS, model_tables
from training.settings import CONFIGS, compose_settings, flatten

MAX_SENTENCE_CHARACTERS = 3_000_000  # base64 of the attention weights of all sentences
MAX_SNAPSHOT_CHARACTERS = 1_500_000


def page_content(
    opened: OpenedModel,
    results: Mapping[str, Any] | None,
    texts: Sequence[str] = (),
    metrics: Sequence[Mapping[str, Any]] = (),
    snapshots: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the content of the page; finite, and with a note for everything that was left out for its size.

    The model reads every sentence now. `results` is probe.json of this checkpoint (None: no claim is shown), `texts`
    the user's sentences, `metrics` the records of metrics.jsonl, `snapshots` the content of attention.jsonl.
    """
    omissions: list[str] = []
    selected = results["selected"] if results else []
    examples = {name: example_sentences(opened, name) for name in SHOWCASE}
    medians = {entry["question"]: median_block(opened, entry) for entry in selected}
    natural = results.get("natural") if results else None
    groups = [[own_sentence(opened, i, text)] for i, text in enumerate(texts, 1)]
    groups += [*(natural_sentences(opened, natural) if natural else ()), *examples.values()]
    sentences = within_size([*groups, *medians.values()], omissions)
    snapshots = thinned(snapshots, omissions)
    places = {text: i for i, text in enumerate(snapshots["texts"])} if snapshots else {}
    for sentence in sentences:
        sentence["snapshot"] = places.get(sentence["text"])
    ids = {sentence["id"] for sentence in sentences}
    return jsonable({
        "run": about(opened) | {"commands": commands_of(opened, results["settings"] if results else {})},
        "notes": [*notes, *(results["warnings"] if results and opened.is_external else ())],
        "max_p": MAX_P,
        "questions": [
            question_content(entry, results["model"])
            | {"sentences": [shown["id"] for group in (examples.get(entry["question"], ()), medians[entry["question"]])
                             for shown in group if shown["id"] in ids]}
            for entry in selected if results
        ],
        "sentences": sentences,
        "training": training_content(metrics, snapshots, natural, results.get("next_pronoun", ()) if results else ()),
        "next_pronoun": [
            {"verdict": entry["verdict"], "claim": next_pronoun_claim(entry)}
            for entry in (results.get("next_pronoun", ()) if results else ())
        ],
        "natural": natural_claims(natural) if natural else [],
        "opening": opening_sentence(natural, results["selected"]) if results and natural else None,
        "tables": [asdict(table) for table in (
            *next_pronoun_tables(results.get("next_pronoun", ())),
            *(natural_tables(natural) if natural else ()),
            *model_tables(results),
        )] if results else [],
        "resumed": opened.resumed,
        "omissions": omissions,
    })  # fmt: skip


def about(opened: OpenedModel) -> dict[str, Any]:
    """Returns the name, shape, training and provenance of a model."""
    model, is_external = opened.model, opened.is_external
    facts = [
        f"{model.n_layer} layers × {model.n_head} heads",
        f"width {opened.shape['d_model']}",
        f"context of {model.context_length} tokens",
        f"{opened.n_parameters:,} parameters",
        f"trained on {opened.data.source}, seed {opened.seed}"
        if opened.data and not is_external
        else "trained elsewhere",
    ]
    if opened.departures:
        facts.append(f"differs from a Llama-style model: {', '.join(opened.departures)}")
    return {
        "name": opened.name,
        "step": "external model" if is_external else f"step {opened.step:,} of {opened.max_steps:,}",
        "facts": " · ".join(facts),
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "environment": opened.environment,
    }


def jsonable(value: Any) -> Any:
    """Returns `value` as strict JSON can hold it: numbers with six significant digits, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


# Commands


def command_in_this_folder(program: str, *arguments: str) -> str:
    """Returns a command for a shell in this folder that runs a program with the Python of this process."""
    python, folder = Path(sys.executable), Path.cwd()
    if shutil.which("python") == str(python):
        python = Path("python")
    elif python.is_relative_to(folder):
        python = python.relative_to(folder)
    return shlex.join([str(python), program, *arguments])


def eval_command(opened: OpenedModel, *arguments: str) -> str:
    """Returns the command that evaluates a model."""
    is_external = opened.is_external
    model = [f"model={opened.source}", f"out={opened.folder}"] if is_external else [f"run={opened.source}"]
    if opened.shape.get("items") == "stories":
        model.append("items=stories")
    if opened.shape.get("tokenizer"):
        model.append(f"tokenizer={opened.shape['tokenizer']}")
    return command_in_this_folder("eval.py", *model, *arguments)


def ablation_code(entry: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Returns Python that removes the head of an entry of probe.json's `selected`; `model` is that of probe.json."""
    tokenizer = f", tokenizer={model['tokenizer']!r}" if model.get("tokenizer") else ""
    example = entry["median"]["sentences"][0]["text"]
    return "\n".join([
        "import torch; from model.observe import HeadEdit; from report.api import open_model",
        f"opened = open_model({model['run']!r}{tokenizer}, device='cpu')",
        f"tokens = torch.tensor([opened.tokenize({example!r}).tokens])",
        f"edit = HeadEdit(layer={entry['layer']}, head={entry['head']}, output=torch.zeros_like)",
        "print(opened.model.logits(tokens, edits=[edit]) - opened.model.logits(tokens))",
    ])  # fmt: skip


def commands_of(opened: OpenedModel, probe_settings: Mapping[str, Any]) -> list[str]:
    """Returns the commands that train a run with the same settings, and probe it with the same settings."""
    defaults = {f"probe.{name}": value for name, value in yaml_values("eval/eval")["probe"].items()}
    used = {f"probe.{name}": value for name, value in probe_settings.items()}
    commands = [eval_command(opened, *changed_arguments(defaults, used))]
    if isinstance(opened, OpenedRun):
        source, used = opened.settings.data.source, flatten(opened.settings)
        data = {f"data.{name}": value for name, value in yaml_values(f"data/{source}").items()}
        defaults = flatten(compose_settings()) | data | {name: used[name] for name in ("out", "resume", "cache_dir")}
        group = [] if source == "stories" else [f"data={source}"]
        commands.insert(0, command_in_this_folder("train.py", *group, *changed_arguments(defaults, used)))
    return commands


def yaml_values(name: str) -> dict[str, Any]:
    """Returns the values of a file in configs/."""
    values: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml"))
    return values


def changed_arguments(defaults: Mapping[str, Any], used: Mapping[str, Any]) -> list[str]:
    """Returns NAME=VALUE, as Hydra reads them, of the settings that differ from the defaults."""
    changed = {name: value for name, value in used.items() if value != defaults[name]}
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in changed.items()]


# Sentences


def sentence_content(
    opened: OpenedModel,
    text: TokenizedText,
    name: str,
    title: str,
    query: Sequence[int],
    antecedents: Sequence[int] = (),
    distractors: Sequence[int] = (),
    *,
    predicts: bool = False,
) -> dict[str, Any]:
    """Returns what the page holds of a sentence that fits into the model's context.

    `name` is group and number, for the address (report.html#yours-1); a group is shown side by side. Words are indices
    into `text.words`; heads are read at the words of `query`, and the first is selected on the page. `predicts`: the
    most probable next tokens are shown.
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
        "weights": pack_weights(word_attention(opened.model, [text])[0]),
    }


def example_sentences(opened: OpenedModel, question: str) -> list[dict[str, Any]]:
    """Returns the worked example of a question; no sentence if the model cannot read all of them."""
    examples = SHOWCASE[question]
    texts = [opened.tokenize(example.text) for example in examples]
    if any(unknown_words(opened, text) or not opened.fits(text) for text in texts):
        return []
    sentences = []
    for i, (example, text) in enumerate(zip(examples, texts, strict=True), 1):
        words = (example.query, example.antecedent, example.distractor)
        title = "At “{}”: the antecedent is “{}”, the distractor “{}”.".format(*words)
        roles = [[text.words.index(word)] for word in words]
        predicts = example.text.endswith(example.query)
        sentences.append(sentence_content(opened, text, f"{question}-{i}", title, *roles, predicts=predicts))
    return sentences


def median_block(opened: OpenedModel, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the four sentences of a question's median block."""
    median, sentences = entry["median"], []
    for i, item in enumerate(median["sentences"], 1):
        text = opened.tokenize(item["text"])
        name, title = f"median-{entry['question']}-{i}", f"Sentence {i} of 4, block {median['block']}."
        firsts = [item["query"]], [span[0] for span in item["antecedents"]], [span[0] for span in item["distractors"]]
        roles = [[text.word_of_token[token] for token in tokens] for tokens in firsts]
        sentences.append(sentence_content(opened, text, name, title, *roles))
    return sentences


def natural_sentences(opened: OpenedModel, natural: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Returns, for every tested head, three prefixes of natural text, each with both pronouns."""
    groups = []
    for question, result in natural["questions"].items():
        for target, examples in result["examples"].items():
            entry, group = result["chosen"][target], list[dict[str, Any]]()
            head = f"L{entry['layer']}H{entry['head']}"
            for example in examples:
                for meant, form in enumerate(example["forms"]):
                    text = opened.tokenize(example["text"] + form + example["after"])
                    contrast = f"contrast {example['contrast']:.2f}, near the median"
                    title = f"{head}, the candidate for the {target}: {contrast}."
                    name = f"natural_{question}_{target.split()[0]}-{len(group) + 1}"
                    mentions = [example["mentions"][meant], example["mentions"][1 - meant]]
                    roles = [[word for span in spans for word in text.words_at(span)] for spans in mentions]
                    content = sentence_content(opened, text, name, title, [len(text.words) - 1], *roles)
                    group.append(content | {"head": [entry["layer"], entry["head"]]})
            groups.append(group)
    return groups


def opening_sentence(natural: Mapping[str, Any], selected: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the sentence that the page opens with: the best natural one, unless the first question has a head."""
    if selected and selected[0]["verdict"] != NOT_ESTABLISHED:
        return None
    found = [
        (abs(entry["t"]), f"natural_{question}_{target.split()[0]}-1")
        for question, result in natural["questions"].items()
        for target, entry in result["chosen"].items()
        if entry["verdict"] != NOT_ESTABLISHED
    ]
    return max(found)[1] if found else None


def own_sentence(opened: OpenedModel, number: int, text: str) -> dict[str, Any]:
    """Returns the user's sentence; heads are read at its pronouns and at later words that decide what those are."""
    tokenized, notes = opened.tokenize(text), lint(text)
    spans = [span for note in notes for span in (note.clue, note.span) if span]
    query = list(dict.fromkeys(1 + tokenized.word_spans.index(span) for span in spans))
    sentence = sentence_content(opened, tokenized, f"yours-{number}", "Your sentence.", query, predicts=True)
    return sentence | {"notes": [*unknown_note(opened, tokenized), *(note.note for note in notes)]}


def unknown_words(opened: OpenedModel, text: TokenizedText) -> list[str]:
    """Returns the pieces of a text that the tokenizer replaces by its token for unknown words, each once."""
    pieces = zip(text.tokens[1:], text.spans, strict=True)
    return list(dict.fromkeys(text.text[slice(*span)] for token, span in pieces if token == opened.unknown))


def unknown_note(opened: OpenedModel, text: TokenizedText) -> list[str]:
    """Returns a note that names the words outside the vocabulary, if there are any."""
    words = unknown_words(opened, text)
    return [f"Not in the model's vocabulary, so read as the unknown word: {', '.join(words)}."] if words else []


def within_size(groups: Sequence[list[dict[str, Any]]], omissions: list[str]) -> list[dict[str, Any]]:
    """Returns the sentences for which there is room, in order; a group is selected or left out as a whole."""
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
    """Returns the snapshots as the page holds them: every n-th step and the last if there is no room for all."""
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
    metrics: Sequence[Mapping[str, Any]],
    snapshots: Mapping[str, Any] | None,
    natural: Mapping[str, Any] | None = None,
    next_pronoun: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any] | None:
    """Returns the curves of training from metrics.jsonl; None without a validation loss.

    `natural` and `next_pronoun` are the results on natural text, whose chosen heads get curves too.
    """
    probes = [record for record in metrics if record["split"] == "probe"]
    losses = [record for record in metrics if record["split"] == "validation" and record["loss"] is not None]
    if not losses:
        return None
    floors = [record.get("floor") for record in losses]
    names = [name for name in DESCRIPTIONS if probes and all(name in record for record in probes)]
    return {
        "steps": [record["step"] for record in probes],
        "curves": {name: head_curves([record[name] for record in probes]) for name in names},
        "natural": natural_curves(probes, natural) if natural else [],
        "next_pronoun": [next_pronoun_curves(probes, entry) for entry in next_pronoun if is_recorded(probes, entry)],
        "loss": {
            "steps": [record["step"] for record in losses],
            "validation": [record["loss"] for record in losses],
            "floor": None if None in floors else floors,
        },
        "snapshots": snapshots,
    }


def natural_curves(probes: Sequence[Mapping[str, Any]], natural: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns, for each question, the contrast of all heads at the pronoun [S][L][H] and the heads chosen there.

    The head with the smallest p is first.
    """
    curves = []
    for question, result in natural["questions"].items():
        chosen = [
            {"target": target, "layer": entry["layer"], "head": entry["head"]}
            for target, entry in sorted(result["chosen"].items(), key=lambda pair: pair[1]["p_corrected"])
            if entry["site"] == "pronoun"
        ]
        if chosen and probes and all(f"natural_{question}" in record for record in probes):
            contrast = [record[f"natural_{question}"]["pronoun_contrast_heads"] for record in probes]
            curves.append({"question": question, "contrast": contrast, "chosen": chosen})
    return curves


def is_recorded(probes: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> bool:
    """Returns whether every reading of training has the question of an entry about the next pronoun."""
    return bool(probes) and all(entry["question"] in record for record in probes)


def next_pronoun_curves(probes: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the share that each head exchanges [S][L][H], and how often the model follows the twin [S]."""
    readings = [record[entry["question"]] for record in probes]
    return {
        "question": entry["question"].removeprefix("next_pronoun_"),
        "layer": entry["layer"],
        "head": entry["head"],
        "share": [reading["share_heads"] for reading in readings],
        "follows_twin": [reading["follows_twin"] for reading in readings],
        "margin": [reading["margin"] for reading in readings],
    }


def head_curves(readings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the curves of one question: scores of all heads [S][L][H]; chance level, resolved share, answers [S]."""
    names = {"accuracy": "accuracy_heads", "pronoun_contrast": "pronoun_contrast_heads", "chance_level": "chance_level"}
    curves = {curve: [reading[name] for reading in readings] for curve, name in names.items()}
    shares = [reading.get("resolved_share") for reading in readings]
    answers = [reading.get("answer_accuracy") for reading in readings]
    of_model = {"resolved_share": shares, "answer_accuracy": answers}
    return curves | {name: None if None in values else values for name, values in of_model.items()}


# Questions


def question_content(entry: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an entry of probe.json's `selected` with its description, its claim and the corrected p of all heads."""
    card = claim_card(entry, model)
    return {
        **entry,
        "description": DESCRIPTIONS[entry["question"]],
        "claim": card["claim"],
        "does_not_show": card["does_not_show"],
        "holdout": HEADLINE,
        "ablation": ablation_code(entry, model),
        "heads": entry["heads"] | {"p": corrected_p(entry["heads"])},
    }
