"""The modes of eval.py for one model: test its heads, measure its loss, look at a sentence, take a test set."""

import glob
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from data.corpus import Corpus, corpus_folder, load_rows, training_counts, validation_documents
from data.english_blocks import english_items
from data.links import LinkItem, link_items
from data.natural import Prefix
from data.stories import GENERATOR_VERSION
from data.stories.leakage import leakage
from data.stories.lexicon import REFERENTS
from data.stories.lint import PronounNote, lint
from data.text import read_documents, text_files
from data.tokenizer import encode_text, training_words
from probe.claim import claim_card
from probe.config import Holdouts, ProbeConfig
from probe.external import EvaluatedModel, Report
from probe.gold import gold_prefixes, links, read_passages, read_rows
from probe.minimal_pairs import minimal_pairs
from probe.natural import DECIDED_SITES, describe, natural_study, prefixes_in
from probe.open import OpenedModel, OpenedRun, check_items, load_data
from probe.sentences import SHOWCASE, TokenizedText, word_attention
from probe.study import Reading, study
from report.content import jsonable, page_content, unknown_note
from report.figures import draw_run
from report.natural import natural_lines, natural_tables
from report.page import page
from report.results import (
    PAGE,
    SCHEMA_VERSION,
    TEXTS,
    read_results,
    read_texts,
    results_folder,
    training_records,
    write_with_figures,
)
from report.tables import (
    claim_markdown,
    detail_lines,
    heads_csv,
    items_jsonl,
    sentence_lines,
    summary_lines,
    table_lines,
)
from training.checkpoint import write_files
from training.command_line import printable
from training.evaluate import validation_loss
from training.logging import gap_lines
from training.settings import Device, check_threads

MAX_TEXTS = 12  # that a page keeps
N_FRAMES, N_PAIRS = 20, 5  # blocks in English: test frames, pairs of names per frame


class Task(Enum):
    """Test sets of other authors."""

    minimal_pairs = "minimal_pairs"
    links = "links"
    natural = "natural"  # any English text; the task of path= alone


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    """Settings of eval.py outside the group probe (values: configs/eval/eval.yaml)."""

    run: str | None  # directory of a run; if None, the newest
    runs: str | None  # directory of a sweep over seeds
    compare: str | None  # directory of a sweep over variants and seeds
    model: str | None  # an external model: a folder written by save_pretrained, or a hub name
    out: str | None  # folder for the results about `model`; if None, probes/NAME
    text: str | None  # a sentence to look at instead of the probe
    task: Task | None  # a test set to take instead of the probe
    path: str | None  # its files; without a task, English text whose pronouns are tested
    open: bool  # show the page in a browser
    figures: bool  # also draw PNG figures; needs matplotlib
    verbose: bool  # print every hold-out, baseline and importance measure
    device: Device
    threads: int | None  # CPU threads; if None, the default of torch
    cache_dir: str  # for tokenized corpora

    def __post_init__(self) -> None:
        """Checks that the settings select one mode."""
        modes = [name for name in ("run", "runs", "compare", "model") if getattr(self, name) is not None]
        is_sweep = self.runs is not None or self.compare is not None
        is_task = self.task is not None or self.path is not None
        problems = [(name, True, f"cannot be combined with {modes[0]}=") for name in modes[1:]] + [
            ("model", self.model == "", "the name is empty"),
            ("out", self.out == "", "the name is empty"),
            ("out", self.model is None, "only for model=; results of a run go into the run"),
            ("task", is_sweep or self.path is None, "needs path=, and one model"),
            ("path", is_sweep, "needs one model"),
            ("text", is_sweep or is_task, "needs one model, without task= and path="),
            ("open", is_sweep or is_task, "opens the page of one model, without task= and path="),
            ("figures", self.text is not None or is_task, "needs a test of the heads, without text= and task="),
        ]
        for name, is_wrong, problem in problems:
            value = getattr(self, name)
            if is_wrong and value is not None and value is not False:
                shown = value.value if isinstance(value, Task) else value
                raise ValueError(f"{name}={shown}: {problem}")
        check_threads(self.threads)


# One model


def probe_heads(
    opened: OpenedModel, settings: EvalSettings, config: ProbeConfig, log: Callable[[str], None] = print
) -> bool:
    """Tests the heads of a model on the stories or, for a run on text, on its own text; writes the probe/ folder.

    Prints the results, and returns whether they could be written.
    """
    texts, records = read_texts(opened.folder), training_records(opened)
    corpus = load_data(opened, settings.cache_dir)
    if isinstance(opened, OpenedRun) and not opened.has_stories:
        print_loss(opened, corpus, records["metrics"], config, log)
    stories = story_items(opened, corpus, config) if opened.has_stories else None
    with results_folder(opened, log) as folder:
        if stories is None:
            content, readings = text_results(opened, corpus, config)
        else:
            content, readings = study_model(opened, stories.dev, stories.test, config)
            content["data"] = stories.data
        warnings = [*opened.resumed, *(stories.warnings if stories else ())]
        results = jsonable({
            "schema_version": SCHEMA_VERSION,
            "model": {
                "run": opened.source,
                "step": opened.step,
                "trained_on": None if opened.is_external else opened.data.source,
                **opened.shape,
            },
            "settings": asdict(config),
            "warnings": warnings,
            **content,
        })  # fmt: skip
        lines = summary_lines(results)
        if "natural" in results:
            lines = [*natural_lines(results["natural"]), "", *lines]
        if settings.verbose:
            tables = natural_tables(results["natural"]) if "natural" in results else []
            lines += [*table_lines(tables), *detail_lines(results)]
        log(printable("\n".join(["", *lines, *(f"note: {line}" for line in warnings)])))
        if folder is not None:
            write_results(
                folder, results, readings, page_content(opened, results, texts, **records), figures=settings.figures
            )
    return folder is not None


Results = tuple[dict[str, Any], dict[str, Reading]]  # for probe.json, and the readings by split


class StoryItems(NamedTuple):
    """The stories in the tokens of a model."""

    dev: list[LinkItem]  # heads are chosen on these
    test: list[LinkItem]
    data: dict[str, Any]  # for probe.json
    warnings: list[str]


def story_items(opened: OpenedModel, corpus: Corpus, config: ProbeConfig) -> StoryItems:
    """Returns the stories that a model is tested on; ValueError if an external model cannot read them."""
    dev_rows, test_rows = load_rows(corpus, "dev"), load_rows(corpus, "test")
    if config.holdouts is Holdouts.all:
        test_rows += load_rows(corpus, "test_others")
    dev, test = (link_items(rows, opened.tokenizer, opened.start) for rows in (dev_rows, test_rows))
    warnings, leaked = list[str](), None
    if opened.is_external:
        n_answers = sum(link["payoff"] is not None for row in [*dev_rows, *test_rows] for link in row["links"])
        warnings = check_items(opened, [*dev, *test], n_answers)
    else:
        leaked = leakage(load_rows(corpus, "train", ["text"]), test_rows)
    data = {"generator_version": GENERATOR_VERSION, "fingerprint": corpus.fingerprint, "leakage": leaked}
    return StoryItems(dev, test, data, warnings)


def text_results(opened: OpenedModel, corpus: Corpus, config: ProbeConfig) -> Results:
    """Returns the results of a run on its validation text and, if it knows enough words, on blocks in English."""
    results: dict[str, Any] = {"selected": [], "importance": [], "behaviour": [], "showcase": {}}
    readings: dict[str, Reading] = {}
    documents = validation_documents(corpus)
    natural = probe_prefixes(opened, prefixes_in(documents), config)
    if natural["missing"]:
        natural["missing"].append(f"the validation text has {describe(documents)}")
    counts, length = training_counts(corpus), opened.model.context_length
    try:
        items = english_items(
            counts, opened.tokenizer, opened.start, length, n_frames=N_FRAMES, n_pairs=N_PAIRS, seed=config.seed
        )
    except ValueError as error:
        natural["missing"].append(str(error))
    else:
        results, readings = study_model(opened, items["dev"], items["test"], config)
    return {"data": {"fingerprint": corpus.fingerprint}, "natural": natural, **results}, readings


def study_model(opened: OpenedModel, dev: Sequence[LinkItem], test: Sequence[LinkItem], config: ProbeConfig) -> Results:
    """Returns the results of the study with the worked examples of the chosen heads, and the readings by split."""
    untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained))
    try:
        results, readings = study(opened.model, untrained, dev, test, config, show_progress)
    finally:
        show_progress("")
    heads = {entry["question"]: (entry["layer"], entry["head"]) for entry in results["selected"]}
    results["showcase"] = {
        question: [opened.read_example(example, heads[question]) for example in examples]
        for question, examples in SHOWCASE.items()
        if question in heads
    }
    return results, readings


def show_progress(question: str) -> None:
    """Shows on a terminal which question is being tested; "" clears the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'testing {question} ...' if question else ''}\033[K")
        sys.stderr.flush()


def write_results(
    folder: Path, results: dict[str, Any], readings: Mapping[str, Reading], content: Mapping[str, Any], *, figures: bool
) -> None:
    """Writes probe.json, the claim cards, the tables, the page and, if wanted, figures; all of them or none."""
    cards = [claim_card(entry, results["model"]) for entry in results["selected"]]
    files: dict[str, str | bytes] = {
        "probe.json": json.dumps(results, indent=2) + "\n",
        "claims.json": json.dumps(jsonable(cards), indent=2) + "\n",
        "claims.md": "\n".join(map(claim_markdown, results["selected"], cards)),
        "heads.csv": heads_csv(readings),
        "items.jsonl": items_jsonl(results, readings["test"]) if readings else "",
        PAGE: page(content),
    }
    write_with_figures(folder, files, "probe.json", draw_run(content) if figures else {})


def probe_prefixes(
    opened: OpenedModel,
    prefixes: Mapping[str, Sequence[Prefix]],
    config: ProbeConfig,
    places: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the results of `natural_study` on prefixes, with progress on a terminal."""
    model, tokenizer, start = opened.model, opened.tokenizer, opened.start
    try:
        return natural_study(
            model,
            opened.untrained,
            tokenizer,
            start,
            prefixes,
            config,
            chosen_elsewhere=places or {},
            progress=show_progress,
        )
    finally:
        show_progress("")


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
    """Takes a test set of other authors, prints its table and writes it to probe/outside/."""
    assert settings.path is not None
    task = settings.task or Task.natural
    if task is Task.natural:
        report = natural_report(opened, settings.path, config)
    else:
        take = {Task.minimal_pairs: minimal_pairs, Task.links: links}[task]
        report = take(evaluated_model(opened, settings, config), settings.path)
    print(printable("\n".join(report.lines)))
    name, about = task.value, {"path": settings.path, "run": opened.source, "step": opened.step}
    record = {"task": name, **about, "settings": asdict(config), **report.results}
    with results_folder(opened, subfolder="outside") as folder:
        if folder is not None:
            files = {
                f"{name}.json": json.dumps(jsonable(record), indent=2) + "\n",
                f"{name}.md": "\n".join(report.lines) + "\n",
            }
            write_files(folder, files, f"{name}.json")
            print(f"\nwrote {folder / name}.json and .md")


def natural_report(opened: OpenedModel, path: str, config: ProbeConfig) -> Report:
    """Returns the results of a model on the English text of a path (`prefixes_of_path`).

    Heads that the run's own validation text has chosen are tested too. Raises ValueError if no question can be tested.
    """
    prefixes, contents = prefixes_of_path(path)
    chosen = {} if opened.is_external else (read_results(opened)[0] or {}).get("natural", {}).get("questions", {})
    places = {
        question: {
            target: (DECIDED_SITES.index(entry["site"]), entry["layer"], entry["head"])
            for target, entry in result["chosen"].items()
        }
        for question, result in chosen.items()
    }
    natural = probe_prefixes(opened, prefixes, config, places)
    if not natural["questions"]:
        raise ValueError(f"path={path}: {'; '.join(natural['missing'])}; found {contents}")
    return Report(natural, [*natural_lines(natural), *table_lines(natural_tables(natural))])


def prefixes_of_path(path: str) -> tuple[dict[str, list[Prefix]], str]:
    """Returns the prefixes of each question in a path, and a description of its content.

    A path names text files (data/text.py), a .tsv file of passages as GAP has them, or .jsonl files with gold links.
    """
    if path.endswith(".tsv"):
        files = [Path(name) for pattern in path.split(",") for name in sorted(glob.glob(pattern.strip()))]
        if not files:
            raise FileNotFoundError(f"path={path}: no such file")
        documents = [text for file in files for text in read_passages(file)]
    else:
        files = text_files(path, "path")
        with files[0].open(encoding="utf-8", errors="replace") as lines:
            has_links = files[0].suffix == ".jsonl" and '"pron_pos"' in lines.readline()
        if has_links:
            rows = [row for file in files for row in read_rows(file)]
            return {"gender": gold_prefixes(rows)}, f"{len(rows):,} rows"
        documents = read_documents(files)
    return prefixes_in(documents), describe(documents)


def evaluated_model(opened: OpenedModel, settings: EvalSettings, config: ProbeConfig) -> EvaluatedModel:
    """Returns the model as the test sets use it."""

    def encode(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = encode_text(opened.tokenizer, text)
        return encoding.ids, encoding.offsets

    words, source = None, "the training data is unknown"
    if not opened.is_external:
        folder = corpus_folder(opened.data.source, opened.data_fingerprint, Path(settings.cache_dir))
        words, source = training_words(opened.tokenizer, folder) or (None, "the training text is not in the cache")
    return EvaluatedModel(
        model=opened.model,
        encode=encode,
        start_token=opened.start,
        unknown_token=opened.unknown,
        training_words=words,
        training_words_source=source,
        untrained=lambda number: opened.untrained(config.seed + number),
        config=config,
    )
