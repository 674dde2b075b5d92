"""The modes of eval.py for one model: test its heads, measure its loss, look at a sentence, take a test set."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from data.corpus import Corpus, corpus_folder
from data.errors import printable
from data.setting_fields import check_limits, setting
from data.stories.lexicon import REFERENTS
from data.stories.lint import PronounNote, lint
from data.tokenizer import encode_text, training_words
from probe.config import Items, ProbeConfig
from probe.external import EvaluatedModel, Report
from probe.minimal_pairs import minimal_pairs
from probe.natural import DECIDED_SITES
from probe.next_pronoun import confirm
from probe.open import OpenedModel, OpenedRun, load_data
from probe.sentences import TokenizedText, word_attention
from report.api import EnglishText, english_text, probe_next_pronoun, probe_opened, probe_prefixes
from report.content import jsonable, page_content, unknown_note
from report.natural import natural_lines, natural_tables
from report.next_pronoun import confirmation_lines, next_pronoun_lines, next_pronoun_tables
from report.page import page
from report.results import (
    PAGE,
    TEXTS,
    read_results,
    read_texts,
    results_folder,
    training_records,
)
from report.tables import (
    detail_lines,
    sentence_lines,
    table_lines,
)
from training.evaluate import validation_loss
from training.files import write_files
from training.logging import gap_lines
from training.settings import MAX_THREADS, Device

MAX_TEXTS = 12  # that a page keeps


class Task(Enum):
    """Test sets of other authors."""

    minimal_pairs = "minimal_pairs"
    natural = "natural"  # any English text; the task of path= alone


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    """Settings of eval.py outside the group probe (values: configs/eval/eval.yaml)."""

    run: str | None = setting("directory of a run; null: the newest")
    runs: str | None = setting("directory of a sweep over seeds")
    compare: str | None = setting("directory of a sweep over variants and seeds")
    model: str | None = setting("an external model: a folder of save_pretrained, a hub name, ckpt.pt or model.bin")
    items: Items | None = setting("sentences it is tested on; null: english (a large model: only the next pronoun)")
    tokenizer: str | None = setting("its tokenizer: a folder, a hub name, tokenizer.json or .bin, a text's characters")
    out: str | None = setting("folder for the results about model=; null: probes/NAME")
    text: str | None = setting("a sentence of your own, whose attention is printed instead of a test")
    task: Task | None = setting("what the files of path= are; null: natural, English text")
    path: str | None = setting("files to test on: a file, a folder or a glob; several separated by commas")
    open: bool = setting("show the page in a browser")
    figures: bool = setting("also draw PNG figures; needs matplotlib")
    verbose: bool = setting("print every hold-out, baseline and importance measure")
    device: Device = setting("where to compute; auto: CUDA if there is a device, else the CPU")
    threads: int | None = setting("CPU threads; null: torch's default", low=1, high=MAX_THREADS)
    cache_dir: str = setting("folder for tokenized corpora")

    def __post_init__(self) -> None:
        """Checks that the settings select one mode."""
        modes = [name for name in ("run", "runs", "compare", "model") if getattr(self, name) is not None]
        is_sweep = self.runs is not None or self.compare is not None
        is_task = self.task is not None or self.path is not None
        problems = [(name, True, f"cannot be combined with {modes[0]}=") for name in modes[1:]] + [
            ("model", self.model == "", "the name is empty"),
            ("out", self.out == "", "the name is empty"),
            ("out", self.model is None, "only for model=; results of a run go into the run"),
            ("items", self.model is None, "only for model=; a run is tested on what it was trained on"),
            ("tokenizer", self.model is None, "only for model=; a run has its own"),
            ("task", is_sweep or self.path is None, "needs path=, and one model"),
            ("path", is_sweep, "needs one model"),
            ("path", self.path == "", "the name is empty"),
            ("items", is_task, "only without task= and path="),
            ("tokenizer", self.tokenizer == "", "the name is empty"),
            ("text", is_sweep or is_task, "needs one model, without task= and path="),
            ("open", is_sweep or is_task, "opens the page of one model, without task= and path="),
            ("figures", self.text is not None or is_task, "needs a test of the heads, without text= and task="),
        ]
        for name, is_wrong, problem in problems:
            value = getattr(self, name)
            if is_wrong and value is not None and value is not False:
                shown = value.value if isinstance(value, Enum) else value
                raise ValueError(f"{name}={shown}: {problem}")
        check_limits(self)


# One model


def probe_heads(
    opened: OpenedModel, settings: EvalSettings, config: ProbeConfig, log: Callable[[str], None] = print
) -> bool:
    """Tests the heads of a model, prints the results and writes the probe/ folder; False if it cannot be written."""
    if isinstance(opened, OpenedRun) and not opened.has_stories:
        print_loss(opened, load_data(opened, settings.cache_dir), training_records(opened)["metrics"], config, log)
    with results_folder(opened, log) as folder:
        result = probe_opened(opened, config, settings.cache_dir)
        lines = ["", *result.lines()]
        if settings.verbose:
            tables = next_pronoun_tables(result.results.get("next_pronoun", ()))
            tables += natural_tables(result.results["natural"]) if "natural" in result.results else []
            lines += [*table_lines(tables), *detail_lines(result.results)]
        log(printable("\n".join([*lines, *(f"note: {line}" for line in result.results["warnings"])])))
        if folder is not None:
            result.save(folder, read_texts(opened.folder), figures=settings.figures)
    return folder is not None


def print_loss(
    opened: OpenedRun,
    corpus: Corpus,
    metrics: Sequence[Mapping[str, Any]],
    config: ProbeConfig,
    log: Callable[[str], None] = print,
) -> None:
    """Prints the loss of a run on its whole validation text: the one that train.py printed, or measured now.

    `metrics` are the records of metrics.jsonl. They have no loss on the whole text if the best step was not the last.
    """
    split, step = corpus.validation, opened.step
    recorded = [record for record in metrics if record.get("whole") and record["step"] == step]
    losses = recorded[-1] if recorded else validation_loss(opened.transformer, split, config.tokens_per_batch)
    loss, bits = losses["loss"], losses["bits_per_byte"]
    log(f"loss {loss:.4f} nats/token, {bits:.4f} bits/byte over {len(split.tokens) - 1:,} validation tokens")
    for note in corpus.notes:
        log(printable(f"note: {note}"))
    for line in gap_lines(losses, is_causal=opened.is_causal):
        log(line)


def look_at_sentence(opened: OpenedModel, text: str) -> bool:
    """Prints the attention of every head at the pronouns of the user's sentence, and adds the sentence to the page.

    Returns whether the page could be written; ValueError if the text is empty or too long.
    """
    if not text.strip():
        raise ValueError("text=: the text is empty")
    tokenized, limit = opened.tokenize(text), opened.model.context_length
    if not opened.fits(tokenized):
        raise ValueError(f"text=: has {len(tokenized.tokens) - 1} tokens; this model reads at most {limit - 1}")
    notes = lint(text)
    rows = nouns_before(tokenized, notes)
    with results_folder(opened) as folder:
        results, missing = read_results(opened)
        texts = [text, *(earlier for earlier in read_texts(opened.folder) if earlier != text)][:MAX_TEXTS]
        for line in [*unknown_note(opened, tokenized), *(note.note for note in notes)]:
            print(f"note: {printable(line)}")
        [weights] = word_attention(opened.model, [tokenized])
        lines = sentence_lines(tokenized, weights, rows, chosen_heads(results))
        no_pronoun = ["note: no pronoun (it, they, she, he and their forms) in the text; the page shows its attention"]
        print(printable("\n".join(lines or no_pronoun)))
        if folder is not None:
            content = page_content(opened, results, texts, notes=missing, **training_records(opened))
            write_files(folder, {TEXTS: json.dumps(texts, indent=2) + "\n", PAGE: page(content)})
    return folder is not None


def nouns_before(text: TokenizedText, notes: Sequence[PronounNote]) -> dict[int, list[str]]:
    """Returns the known nouns and names before each pronoun, and before a later word that decides, by word index."""
    rows = {1 + text.word_spans.index(span): note for note in notes for span in (note.span, note.clue) if span}
    return {
        row: [word for word in dict.fromkeys(text.words[:row]) if word in REFERENTS or word in note.candidates]
        for row, note in rows.items()
    }


def chosen_heads(results: Mapping[str, Any] | None) -> dict[tuple[int, int], list[str]]:
    """Returns the questions for which the probe chose a head, by (layer, head)."""
    chosen: dict[tuple[int, int], list[str]] = {}
    for entry in results["selected"] if results else ():
        chosen.setdefault((entry["layer"], entry["head"]), []).append(entry["question"])
    return chosen


def run_test_set(opened: OpenedModel, settings: EvalSettings, config: ProbeConfig) -> None:
    """Takes a test set of other authors, prints its table and writes it to probe/outside/TASK_FILE.{json,md}."""
    assert settings.path is not None
    task = settings.task or Task.natural
    if task is Task.natural:
        report = natural_report(opened, settings.path, config)
    else:
        report = minimal_pairs(evaluated_model(opened, settings, config), settings.path)
    print(printable("\n".join(report.lines)))
    name = test_set_name(task.value, settings.path)
    about = {"path": settings.path, "run": opened.source, "step": opened.step}
    record = {"task": task.value, **about, "settings": asdict(config), **report.results}
    with results_folder(opened, subfolder="outside") as folder:
        if folder is not None:
            files = {
                f"{name}.json": json.dumps(jsonable(record), indent=2) + "\n",
                f"{name}.md": "\n".join(report.lines) + "\n",
            }
            write_files(folder, files, f"{name}.json")
            print(f"\nwrote {folder / name}.json and .md")


def test_set_name(task: str, path: str) -> str:
    """Returns the name of the results of a test set, for example natural_litbank_dev."""
    files = "_".join(Path(part.strip()).stem for part in path.split(","))
    return f"{task}_{re.sub(r'[^A-Za-z0-9]+', '_', files).strip('_')[:80]}"


def natural_report(opened: OpenedModel, path: str, config: ProbeConfig) -> Report:
    """Returns the results of a model on the English text of a path (`report.api.files_of_path`).

    Heads that the run's own validation text has chosen are tested too. Raises ValueError if no question can be tested.
    """
    text = english_text(path, None)
    earlier = {} if opened.is_external else read_results(opened)[0] or {}
    chosen = earlier.get("natural", {}).get("questions", {})
    places = {
        question: {
            target: (DECIDED_SITES.index(entry["site"]), entry["layer"], entry["head"])
            for target, entry in result["chosen"].items()
        }
        for question, result in chosen.items()
    }
    confirmed, not_confirmed = confirm_heads(opened, text, earlier.get("next_pronoun", ()), config)
    entries, missing = list[dict[str, Any]](), list[str]()
    if text.documents:  # rows with gold links have no twins, so they only confirm a head
        entries, missing = probe_next_pronoun(opened, text, config)
    missing = [*missing, *not_confirmed]
    natural = probe_prefixes(opened, text.prefixes, config, places)
    natural["missing"] = [*missing, *natural["missing"]]
    if not natural["questions"] and not entries and not confirmed:
        reasons = [sentence for sentence in missing if "gender" in sentence] or natural["missing"]
        problem = f"too little to test (is it English prose about people?): {reasons[0]}"
        raise ValueError(f"path={path}: {problem}; found {text.contents}")
    natural["missing"] += [
        f"{question}, {target}: the head chosen on the validation text, because this text ends at the pronoun"
        for question, result in natural["questions"].items()
        for target in sorted(set(places.get(question, {})) - set(result["confirmed"]))
    ]
    if not places and not opened.is_external:
        natural["missing"].append("heads chosen on the run's own validation text: run eval.py without path= first")
    lines = [*confirmation_lines(confirmed), *next_pronoun_lines(entries), "", *natural_lines(natural)]
    tables = [*next_pronoun_tables(entries), *natural_tables(natural)]
    results = {"selected": entries, "next_pronoun_confirmed": confirmed, **natural}
    return Report(results, [*lines, *table_lines(tables)])


def confirm_heads(
    opened: OpenedModel, text: EnglishText, entries: Sequence[Mapping[str, Any]], config: ProbeConfig
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the tests on a text of the heads that decide the next pronoun on the run's own validation text.

    `entries` are those of probe.json; the second list says which could not be tested.
    """
    confirmed, missing = list[dict[str, Any]](), list[str]()
    for entry in entries:
        question = entry["question"].removeprefix("next_pronoun_")
        heads = entry["head_set"]["heads"] if entry["unit"] == "set" else [(entry["layer"], entry["head"])]
        answer = confirm(
            opened.model,
            opened.tokenizer,
            opened.start,
            question,
            text.passages.get(question, ()),
            [(layer, head) for layer, head in heads],
            config,
            needs_twin=bool(text.documents),
        )
        if isinstance(answer, str):
            missing.append(answer)
        else:
            confirmed.append(jsonable(asdict(answer)))
    return confirmed, missing


def evaluated_model(opened: OpenedModel, settings: EvalSettings, config: ProbeConfig) -> EvaluatedModel:
    """Returns the model as the test sets use it."""

    def encode(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = encode_text(opened.tokenizer, text)
        return encoding.ids, encoding.offsets

    words, source = None, "the training data is unknown"
    if opened.data is not None and not opened.is_external:
        folder = corpus_folder(opened.data.source, opened.data_fingerprint, Path(settings.cache_dir))
        words, source = training_words(opened.tokenizer, folder) or (None, "the training text is not in the cache")
    return EvaluatedModel(
        model=opened.model,
        encode=encode,
        start_token=opened.start,
        unknown_token=opened.unknown,
        training_words=words,
        training_words_source=source,
        config=config,
    )
