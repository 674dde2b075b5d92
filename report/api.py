"""The probe from Python: `probe_model` returns what eval.py prints and writes, for any model (docs/usage.md)."""

import glob
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

from data.corpus import Corpus, load_rows, training_counts, validation_documents
from data.english_blocks import english_items
from data.errors import UserError
from data.links import LinkItem, link_items
from data.natural import Prefix
from data.next_pronoun import Passage, find_all, passage_of_gold
from data.stories import GENERATOR_VERSION
from data.stories.leakage import leakage
from data.text import read_documents, text_files
from data.typed_json import from_json, to_json
from probe.after_pronoun import after_pronoun
from probe.claim import claim_card
from probe.config import Holdouts, Items, ProbeConfig
from probe.gold import gold_prefixes, read_passages, read_rows
from probe.natural import MAX_PREFIXES, describe, make_items, natural_study, prefixes_in, sections
from probe.next_pronoun import study_question
from probe.open import LARGE_MODEL, OpenedModel, check_items, load_data, open_external, open_run
from probe.results import (
    SCHEMA_VERSION,
    Leakage,
    NaturalResult,
    NextPronounResult,
    ProbeResults,
    QuestionResult,
    TestedData,
    TestedModel,
)
from probe.sentences import SHOWCASE
from probe.study import Reading, study
from report.content import page_content
from report.figures import draw_run
from report.natural import natural_claims, natural_lines
from report.next_pronoun import next_pronoun_card, next_pronoun_claim, next_pronoun_lines
from report.page import page
from report.reproduce import probe_defaults
from report.results import PAGE, write_with_figures
from report.tables import claim_markdown, heads_csv, items_jsonl, summary_lines
from training.device import choose_device
from training.settings import Device, Precision, compose_settings, typed

SHIPPED_TEXT = str(Path(__file__).resolve().parent.parent / "data" / "tinystories" / "validation.txt.gz")
N_FRAMES = 20  # test frames of the blocks in English
N_PAIRS = 5  # pairs of names per frame
# Larger activations are allocated again in each layer.
# GPT-2 took 164 s of system time with 16,384 tokens, 15 s with 2,048.
LARGE_MODEL_TOKENS = 2048  # per batch
MAX_PREFIXES_LARGE = 60  # per question
MAX_UNTRAINED_LARGE = 2  # models
MIN_SHARE = 0.03  # finished fraction of a study from which on the remaining time is estimated
Readings = dict[str, Reading]  # what every head does at every item, by split


@dataclass(frozen=True, repr=False)
class ProbeResult:
    """What the probe found out about a model."""

    opened: OpenedModel
    results: ProbeResults  # the content of probe.json (docs/probe.md)
    readings: Readings

    @cached_property
    def heads(self) -> dict[str, QuestionResult]:
        """The chosen head of each question of the stories or the English blocks, with its scores and verdict."""
        return {result.question: result for result in self.results.selected}

    def table(self) -> list[dict[str, Any]]:
        """Return one row per question, for `pandas.DataFrame`."""
        rows = []
        for result in self.results.selected:
            low, high = result.headline.accuracy_interval
            rows.append({
                "question": result.question,
                "layer": result.layer,
                "head": result.head,
                "verdict": result.verdict,
                "evidence_level": result.evidence_level,
                "accuracy": result.headline.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
                "block_accuracy": result.headline.block_accuracy,
                "p": result.headline.p_corrected,
                "attention_swap": None if result.causal is None else result.causal.attention_swap,
                "claim": claim_card(result, self.results.model).claim,
            })  # fmt: skip
        return rows

    def lines(self) -> list[str]:
        """Return the lines that eval.py prints."""
        lines = summary_lines(self.results)
        if self.results.natural is None:
            return lines
        first = [*next_pronoun_lines(self.results.next_pronoun), "", *natural_lines(self.results.natural)]
        return [*first, "", *lines] if lines else first

    def __str__(self) -> str:
        """Return the lines that eval.py prints as one text."""
        return "\n".join([*self.lines(), *(f"note: {warning}" for warning in self.results.warnings)])

    __repr__ = __str__  # what a notebook shows

    def save(self, folder: str | Path, texts: Sequence[str] = (), *, figures: bool = False) -> Path:
        """Write probe.json, the report and the other files of eval.py to `folder`, all or none; return the report.

        `texts` are sentences that the report also shows; `figures` adds PNG files and needs matplotlib.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = page_content(self.opened, self.results, texts)  # the model reads the sentences now
        files: dict[str, str | bytes] = {
            "probe.json": json.dumps(self.results.to_json(), indent=2) + "\n",
            **self._claim_files(),
            "heads.csv": heads_csv(self.readings),
            "items.jsonl": items_jsonl(self.results, self.readings["test"]) if self.readings else "",
            PAGE: page(content),
        }
        write_with_figures(folder, files, "probe.json", draw_run(to_json(content)) if figures else {})
        return folder / PAGE

    def _claim_files(self) -> dict[str, str]:
        """Return claims.json and claims.md: the next pronoun, natural text, then the other questions."""
        cards: list[Any] = []
        lines = []

        # Natural text: one line for each claim
        for decision in self.results.next_pronoun:
            cards.append(next_pronoun_card(decision))
            lines.append(f"- Next pronoun, **{decision.verdict}**: {next_pronoun_claim(decision)}")
        for verdict, claim in natural_claims(self.results.natural) if self.results.natural else ():
            cards.append({"question": "natural text", "verdict": verdict, "claim": claim})
            lines.append(f"- Natural text, **{verdict}**: {claim}")
        if lines:
            lines.append("")

        # Stories or blocks in English: a section with the evidence for each question
        for result in self.results.selected:
            card = claim_card(result, self.results.model)
            cards.append(card)
            lines.append(claim_markdown(result, card))
        return {"claims.json": json.dumps(to_json(cards), indent=2) + "\n", "claims.md": "\n".join(lines)}


def open_model(
    model: str | Path,
    *,
    items: str | Items | None = None,
    tokenizer: str | None = None,
    out: str | None = None,
    device: str | Device = Device.auto,
    threads: int | None = None,
) -> OpenedModel:
    """Open a run of train.py, a model of transformers or a checkpoint of nanoGPT or llama2.c.

    `model` is the directory of a run, a folder written by save_pretrained, a name on the hub, `ckpt.pt` or `model.bin`.
    `tokenizer`: see docs/usage.md; if None, that of the model. `items`: for a model that is no run, the sentences that
    it is tested on: "english" (the default) or "stories". `out`: the folder of eval.py's results.
    Raises UserError or OSError with one line.
    """
    if not str(model):
        raise UserError("model=: the name is empty")
    if device not in [*Device, *(kind.value for kind in Device)]:
        raise UserError(f"device={device}: must be one of {', '.join(kind.value for kind in Device)}")
    used = choose_device(Device(device), Precision.float32, threads).device

    # A run of train.py has everything in its folder.
    if (Path(model) / "checkpoints").is_dir():
        if items is not None or tokenizer is not None or out is not None:
            raise UserError(f"model={model}: is a run of train.py, which has its own sentences, tokenizer and folder")
        return open_run(Path(model), used)

    # An external model may be tested on the stories, with their default settings.
    if items not in (None, *Items):
        raise UserError(f"items={items}: must be one of {', '.join(Items)}")
    stories = compose_settings().data if items == Items.stories else None
    return open_external(str(model), out, stories, used, tokenizer, has_items=items is not None)


def probe_model(
    model: str | Path | OpenedModel, *, path: str | None = None, cache_dir: str = ".cache", **settings: Any
) -> ProbeResult:
    """Test every head of a model, with baselines, corrected statistics and causal tests; write nothing.

    `model` is what `open_model` returns or takes. `path` names English text for the questions about natural text
    (docs/english.md); a run on text uses its validation text. `settings` are those of `open_model` and of the group
    probe in configs/eval/eval.yaml, for example `n_untrained=10`. Raises UserError or OSError with one line.
    """
    # Settings of the probe; the others are for opening the model
    probe = probe_defaults()
    for name in probe:
        probe[name] = settings.pop(name, probe[name])
    allowed = () if isinstance(model, OpenedModel) else ("items", "tokenizer", "out", "device", "threads")
    for name, value in settings.items():
        if name not in allowed:
            raise UserError(f"{name}={value}: no such setting, or the model is open already")
    opened = model if isinstance(model, OpenedModel) else open_model(model, **settings)
    return probe_opened(opened, typed(ProbeConfig, probe, "probe."), cache_dir, path)


def probe_opened(opened: OpenedModel, config: ProbeConfig, cache_dir: str, path: str | None = None) -> ProbeResult:
    """Test the heads of an opened model on the stories or on English; arguments as `probe_model`."""
    # A large model on a CPU would take hours.
    if is_large(opened) and opened.model.device.type == "cpu":
        config = replace(
            config,
            tokens_per_batch=min(config.tokens_per_batch, LARGE_MODEL_TOKENS),
            n_untrained=min(config.n_untrained, MAX_UNTRAINED_LARGE),
        )
    corpus = None if opened.data is None else load_data(opened, cache_dir)
    trained_on = None if opened.data is None or opened.is_external else opened.data.source

    # The study fills the rest.
    empty = ProbeResults(
        schema_version=SCHEMA_VERSION,
        model=TestedModel(opened.source, opened.step, trained_on, dict(opened.shape)),
        settings=config,
        warnings=list(opened.resumed),
        data=TestedData(fingerprint=opened.data_fingerprint),
    )
    if not opened.has_stories:
        results, readings = _probe_english(opened, corpus, empty, path)
    else:
        # Stories have no natural text.
        if path is not None:
            raise UserError(f"path={path}: the model is tested on the stories; give items='english', or leave path out")
        assert corpus is not None
        results, readings = _probe_stories(opened, corpus, empty)
    return ProbeResult(opened, results.rounded(), readings)


def _probe_stories(opened: OpenedModel, corpus: Corpus, empty: ProbeResults) -> tuple[ProbeResults, Readings]:
    """Return `empty` with the results on the stories; UserError if an external model cannot read them."""
    # Rows of the corpus and their links in the tokens of the model
    dev_rows = load_rows(corpus, "dev")
    test_rows = load_rows(corpus, "test")
    if empty.settings.holdouts is Holdouts.all:
        test_rows += load_rows(corpus, "test_others")
    dev = link_items(dev_rows, opened.tokenizer, opened.start)
    test = link_items(test_rows, opened.tokenizer, opened.start)

    # A run must not have been trained on the test stories; an external model must know their words.
    leaked = None
    warnings: list[str] = []
    if opened.is_external:
        n_answers = 0
        for row in [*dev_rows, *test_rows]:
            n_answers += sum(link["payoff"] is not None for link in row["links"])
        warnings = check_items(opened, [*dev, *test], n_answers)
    else:
        leaked = Leakage(**leakage(load_rows(corpus, "train", ["text"]), test_rows))
    data = TestedData(generator_version=GENERATOR_VERSION, fingerprint=corpus.fingerprint, leakage=leaked)
    return _study_model(opened, dev, test, replace(empty, data=data, warnings=[*empty.warnings, *warnings]))


def _probe_english(
    opened: OpenedModel, corpus: Corpus | None, empty: ProbeResults, path: str | None
) -> tuple[ProbeResults, Readings]:
    """Return `empty` with the results on natural text and, if the model knows enough words, on blocks in English.

    The text is that of `path`, otherwise the validation text of `corpus`, otherwise the one that comes with the
    project. Without a corpus the model's training text is unknown: then all words are used in the blocks.
    """
    config = empty.settings

    # Natural text; a large model is only asked about the next pronoun.
    text = english_text(path or (SHIPPED_TEXT if corpus is None else None), corpus)
    next_pronoun, missing = probe_next_pronoun(opened, text, config)
    if opened.only_next_pronoun:
        weights = f"{opened.n_parameters:,} weights"
        warning = f"{weights}: only the next pronoun was tested; items=english tests the rest"
        natural = NaturalResult({}, missing)
        results = replace(empty, next_pronoun=next_pronoun, natural=natural, warnings=[*empty.warnings, warning])
        return results, {}
    natural = probe_prefixes(opened, text.prefixes, config)
    missing += natural.missing
    if not next_pronoun:
        missing.append(f"the text has {text.contents}")

    # Blocks in English. A run may know too few words; an external model that does is refused.
    counts = None if corpus is None else training_counts(corpus)
    sizes: dict[str, Any] = {"n_frames": N_FRAMES, "n_pairs": N_PAIRS, "seed": config.seed}
    try:
        items = english_items(counts, opened.tokenizer, opened.start, opened.model.context_length, **sizes)
    except ValueError as error:
        if opened.is_external:
            raise UserError(f"model={opened.source}: {error}") from None
        missing.append(str(error))
        items = {}
    results = replace(empty, next_pronoun=next_pronoun, natural=NaturalResult(natural.questions, missing))
    if not items:
        return results, {}
    dev, test = items.values()
    if opened.is_external:
        n_answers = sum(item.family == "english" for item in [*dev, *test])
        results = replace(results, warnings=[*empty.warnings, *check_items(opened, [*dev, *test], n_answers)])
    return _study_model(opened, dev, test, results)


def _study_model(
    opened: OpenedModel, dev: Sequence[LinkItem], test: Sequence[LinkItem], empty: ProbeResults
) -> tuple[ProbeResults, Readings]:
    """Return `empty` with the results of the study and the worked examples of the chosen heads."""
    # Untrained models are made one at a time, so that memory holds one of them.
    config = empty.settings
    untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained))
    try:
        studied, readings = study(opened.model, untrained, dev, test, config, show_progress)
    finally:
        show_progress("")

    # BRIDGE: until `study` and `read_example` return the types of probe.results
    kinds = get_type_hints(ProbeResults)
    values = {name: from_json(kinds[name], to_json(value), name) for name, value in studied.items()}
    results = replace(empty, **values)

    # Worked examples, read by the heads that were chosen
    showcase = {}
    for question, examples in SHOWCASE.items():
        if result := results.question(question):
            showcase[question] = [opened.read_example(example, result.place) for example in examples]
    showcase = from_json(kinds["showcase"], to_json(showcase), "showcase")  # BRIDGE
    return replace(results, showcase=showcase), readings


def show_progress(question: str) -> None:
    """Show on a terminal which question is being tested; "" clears the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'testing {question} ...' if question else ''}\033[K")
        sys.stderr.flush()


def _progress_with_time(name: str) -> Callable[[str, float], None]:
    """Return a function that shows the stage of a study, its finished share, and about how long it will still take."""
    start = time.monotonic()

    def show(stage: str, share: float) -> None:
        seconds = time.monotonic() - start
        left = "" if share < MIN_SHARE else f", about {seconds * (1 - share) / share:.0f} s left"
        show_progress(f"{name}: {stage}{left}")

    return show


def is_large(opened: OpenedModel) -> bool:
    """Return whether every pass of a model is slow on a CPU."""
    return opened.n_parameters > LARGE_MODEL


def max_prefixes(opened: OpenedModel) -> int:
    """Return how many prefixes of each question are used."""
    return MAX_PREFIXES_LARGE if is_large(opened) else MAX_PREFIXES


# English text


def probe_prefixes(
    opened: OpenedModel,
    prefixes: Mapping[str, Sequence[Prefix]],
    config: ProbeConfig,
    places: Mapping[str, Any] | None = None,
) -> NaturalResult:
    """Return the results of `natural_study` on prefixes, with progress on a terminal."""
    try:
        studied = natural_study(
            opened.model, opened.untrained, opened.tokenizer, opened.start, prefixes, config,
            chosen_elsewhere=places or {}, limit=max_prefixes(opened), progress=show_progress,
        )  # fmt: skip
    finally:
        show_progress("")
    result: NaturalResult = from_json(NaturalResult, to_json(studied), "natural")  # BRIDGE
    return result


@dataclass(frozen=True)
class EnglishText:
    """What the questions about English need of a text."""

    documents: list[tuple[str, str]]  # name and text; long documents are cut into sections
    passages: dict[str, list[Passage]]  # by question
    prefixes: dict[str, list[Prefix]]
    contents: str  # a description for messages


def english_text(path: str | None, corpus: Corpus | None) -> EnglishText:
    """Return the passages and prefixes of a path (`files_of_path`), otherwise of the validation text of `corpus`."""
    # Documents, or rows with gold links, which have no text between them
    if path is None:
        assert corpus is not None
        texts = validation_documents(corpus)
    else:
        kind, files = files_of_path(path)
        if kind is TextKind.gold:
            rows = [row for file in files for row in read_rows(file)]
            gold = gold_prefixes(rows)
            passages = {"gender": [passage_of_gold(prefix) for prefix in gold]}
            return EnglishText([], passages, {"gender": gold}, f"{len(rows):,} rows")
        texts = texts_of(kind, files)

    # Prefixes are found in whole documents, passages in sections of them.
    documents = sections(texts, only_long=True)
    return EnglishText(documents, find_all(documents), prefixes_in(texts), describe(texts))


def probe_next_pronoun(
    opened: OpenedModel, text: EnglishText, config: ProbeConfig
) -> tuple[list[NextPronounResult], list[str]]:
    """Return the results on the next pronoun, and a sentence for each question that cannot be tested."""
    model = opened.model
    tokenizer = opened.tokenizer
    start = opened.start
    results: list[NextPronounResult] = []
    missing: list[str] = []
    try:
        for question, passages in text.passages.items():
            untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained))
            progress = _progress_with_time(f"the next pronoun ({question})")
            studied = study_question(
                model, untrained, tokenizer, start, question, passages, text.documents, config, progress
            )
            if isinstance(studied, str):
                missing.append(studied)
                continue

            # What the same head does at the pronoun itself
            prefixes = text.prefixes[question]
            items = make_items(prefixes, tokenizer, start, model.context_length, config.seed, max_prefixes(opened))
            after = after_pronoun(model, items, (studied.layer, studied.head), config)
            whole = to_json(replace(studied, after=after))
            results.append(from_json(NextPronounResult, whole, "next_pronoun"))  # BRIDGE
    finally:
        show_progress("")
    return results, missing


class TextKind(Enum):
    """What the files of path= hold."""

    english = "english"
    passages = "passages"  # a .tsv file as GAP has them
    gold = "gold"  # rows with annotated antecedents


def files_of_path(path: str) -> tuple[TextKind, list[Path]]:
    """Return what the files of a path hold, and the files.

    A path names text files (data/text.py), a .tsv file of passages as GAP has them, or .jsonl files with gold links.
    """
    # Tables of passages stand alone.
    patterns = list(map(str.strip, path.split(",")))
    is_table = [pattern.endswith(".tsv") for pattern in patterns]
    if any(is_table) and not all(is_table):
        raise UserError(f"path={path}: a .tsv file of passages is tested by itself; leave the others out")
    if all(is_table):
        tables = list[Path]()
        for pattern in patterns:
            tables += map(Path, sorted(glob.glob(pattern)))
        if not tables:
            raise FileNotFoundError(f"path={path}: no such file")
        return TextKind.passages, tables
    # The first line of a .jsonl file says whether its rows have gold links.
    files = text_files(path, "path")
    with files[0].open(encoding="utf-8", errors="replace") as lines:
        has_links = files[0].suffix == ".jsonl" and '"pron_pos"' in lines.readline()
    return (TextKind.gold if has_links else TextKind.english), files


def texts_of(kind: TextKind, files: Sequence[Path]) -> list[str]:
    """Return the documents of text files, or the passages of tables."""
    if kind is TextKind.passages:
        return [text for file in files for text in read_passages(file)]
    return read_documents(files)
