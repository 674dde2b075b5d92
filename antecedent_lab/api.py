"""The probe from Python: `probe_model` returns what eval.py prints and writes, for any model (docs/usage.md)."""

import html
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from antecedent_lab.english_text import EnglishText, english_text
from antecedent_lab.eval_settings import STORIES
from antecedent_lab.known_items import KnownItems, own_items, story_items
from antecedent_lab.opened import LARGE_MODEL, load_data, open_external, open_run
from antecedent_lab.progress import StudyProgress, time_left
from antecedent_lab.saved import PAGE, read_history, read_metrics
from data.errors import UserError
from data.own_items import OwnQuestion
from data.typed_json import to_json
from model.observe import HeadEdit
from probe.claim import claim_card
from probe.config import ProbeConfig
from probe.interventions import cut_link, exchange_links, remove_head
from probe.items import QUESTIONS, Question
from probe.links import HeadScores, LinkStudy, study_links
from probe.next_pronoun import planned_work, question_items, study_next_pronoun
from probe.opened_model import OpenedModel
from probe.results import (
    SCHEMA_VERSION,
    Head,
    NextPronounResult,
    ProbeResults,
    QuestionResult,
    ShowcaseExample,
    TestedData,
    TestedModel,
)
from probe.sentences import SHOWCASE
from report.content import page_content
from report.next_pronoun import next_pronoun_card, next_pronoun_claim, next_pronoun_lines, screening_notes
from report.page import page
from report.tables import claim_markdown, heads_csv, items_jsonl, summary_lines
from training.device import choose_device
from training.files import write_files
from training.metrics import load_metrics
from training.settings import MAX_THREADS, Device, Precision, compose_settings, did_you_mean, to_settings

__all__ = [
    "Head",
    "HeadEdit",
    "OpenedModel",
    "ProbeConfig",
    "ProbeResult",
    "ProbeResults",
    "UserError",
    "cut_link",
    "exchange_links",
    "load_metrics",
    "open_model",
    "probe_model",
    "remove_head",
]
# Larger activations are allocated again in each layer.
# GPT-2 took 164 s of system time with 16,384 tokens, 15 s with 2,048.
LARGE_MODEL_TOKENS = 2048  # per batch
MAX_UNTRAINED_LARGE = 2  # models


@dataclass(frozen=True, repr=False)
class ProbeResult:
    """What the probe found out about a model."""

    opened: OpenedModel
    results: ProbeResults  # the content of probe.json (docs/probe.md)
    scores: dict[str, HeadScores]  # what every head does at every item, by split; empty for English text

    @cached_property
    def heads(self) -> dict[str, QuestionResult]:
        """The chosen head of each question of the stories or of the user's own, with its scores and verdict."""
        return {result.question: result for result in self.results.selected}

    def table(self) -> list[dict[str, Any]]:
        """Return one row per question, for `pandas.DataFrame`."""
        rows = []
        for result in self.results.selected:
            scores = result.judged_scores
            low, high = scores.accuracy_interval
            rows.append({
                "question": result.question,
                "layer": result.layer,
                "head": result.head,
                "verdict": result.verdict,
                "evidence_level": result.evidence_level,
                "unit": result.unit,
                "accuracy": scores.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
                "block_accuracy": scores.block_accuracy,
                "p": scores.p_corrected,
                "attention_swap": result.judged_swap,
                "claim": claim_card(result, self.results.model).claim,
            })  # fmt: skip
        return rows

    def lines(self) -> list[str]:
        """Return the lines that eval.py prints."""
        lines = summary_lines(self.results)
        lines += next_pronoun_lines(self.results.next_pronoun)
        return [*lines, *(f"not tested: {reason}" for reason in self.results.missing)]

    def __str__(self) -> str:
        """Return the lines that eval.py prints as one text."""
        return "\n".join([*self.lines(), *(f"note: {warning}" for warning in self.results.warnings)])

    __repr__ = __str__  # what a console shows

    def page(self, texts: Sequence[str] = (), *, live: bool | None = None) -> str:
        """Return the report as HTML; arguments as `save`."""
        records = (read_metrics(self.opened), read_history(self.opened))
        return page(page_content(self.opened, self.results, *records, texts, live=live))

    def _repr_html_(self) -> str:
        """Return the report in a frame, which a notebook shows; its script cannot reach the notebook."""
        allowed = 'sandbox="allow-scripts allow-downloads"'
        style = 'style="width: 100%; height: 60rem; border: 0"'
        return f'<iframe title="Antecedent" {allowed} {style} srcdoc="{html.escape(self.page())}"></iframe>'

    def save(self, folder: str | Path, texts: Sequence[str] = (), *, live: bool | None = None) -> Path:
        """Write probe.json, the report and the other files of eval.py to `folder`, all or none; return the report.

        `texts` are sentences that the report also shows; the model reads them now. `live`: whether the report has the
        model itself, to type sentences into (None: if it has at most a million weights).
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {
            "probe.json": json.dumps(self.results.to_json(), indent=2) + "\n",
            **self._claim_files(),
            "heads.csv": heads_csv(self.results, self.scores),
            "items.jsonl": items_jsonl(self.results, self.scores["test"]) if self.scores else "",
            PAGE: self.page(texts, live=live),
        }
        write_files(folder, files, "probe.json")
        return folder / PAGE

    def _claim_files(self) -> dict[str, str]:
        """Return claims.json and claims.md: the next pronoun, then the other questions."""
        cards: list[Any] = []
        lines = []

        # The next pronoun: one line for each claim
        for decision in self.results.next_pronoun:
            cards.append(next_pronoun_card(decision))
            lines.append(f"- Next pronoun, **{decision.verdict}**: {next_pronoun_claim(decision)}")
        if lines:
            lines.append("")

        # Stories or the user's own texts: a section with the evidence for each question
        for result in self.results.selected:
            card = claim_card(result, self.results.model)
            cards.append(card)
            lines.append(claim_markdown(result, card))
        return {"claims.json": json.dumps(to_json(cards), indent=2) + "\n", "claims.md": "\n".join(lines)}


def open_model(
    model: str | Path,
    *,
    items: str | None = None,
    tokenizer: str | None = None,
    out: str | None = None,
    device: str | Device = Device.auto,
    threads: int | None = None,
) -> OpenedModel:
    """Open a run of train.py or a model of transformers.

    `model` is the directory of a run, a folder written by save_pretrained or a name on the hub.
    `tokenizer`: see docs/usage.md; if None, that of the model. `items`: "stories" to test a model that is no
    run on the stories, None for the next pronoun in English text. `out`: the folder of eval.py's results.
    Raises UserError or OSError with one line.
    """
    if not str(model):
        raise UserError("model=: the name is empty")
    if device not in [*Device, *(kind.value for kind in Device)]:
        raise UserError(f"device={device}: must be one of {', '.join(kind.value for kind in Device)}")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UserError(f"threads={threads}: must be between 1 and {MAX_THREADS:,}")
    used = choose_device(Device(device), Precision.float32, threads).device

    # A run of train.py has everything in its folder.
    if (Path(model) / "checkpoints").is_dir():
        if items is not None or tokenizer is not None or out is not None:
            raise UserError(f"model={model}: is a run of train.py, which has its own sentences, tokenizer and folder")
        return open_run(Path(model), used)

    # An external model may be tested on the stories, with their default settings.
    if items not in (None, STORIES):
        raise UserError(f"items={items}: must be {STORIES} or None")
    stories = compose_settings().data if items == STORIES else None
    return open_external(str(model), out, stories, used, tokenizer)


def probe_model(
    model: str | Path | OpenedModel, *, path: str | None = None, cache_dir: str = ".cache", **settings: Any
) -> ProbeResult:
    """Test every head of a model, with baselines, corrected statistics and causal tests; write no results.

    `model` is what `open_model` returns or takes. `path` names English text for the question about the next pronoun
    (docs/english.md); a run on text uses its validation text. `settings` are those of `open_model` and of the group
    probe in configs/eval/eval.yaml, for example `n_untrained=10`. Raises UserError or OSError with one line.
    """
    # Settings of the probe; the others are for opening the model
    probe = asdict(ProbeConfig())
    for name in probe:
        probe[name] = settings.pop(name, probe[name])
    allowed = ("items", "tokenizer", "out", "device", "threads")
    for name, value in settings.items():
        if name not in allowed:
            similar = did_you_mean(name, [*allowed, *probe])
            raise UserError(f"{name}={value}: no such setting{similar}")
        if isinstance(model, OpenedModel):
            raise UserError(f"{name}={value}: the model is open already; give it to open_model")
    if path == "":
        raise UserError("path=: the name is empty")
    opened = model if isinstance(model, OpenedModel) else open_model(model, **settings)
    return probe_opened(opened, to_settings(ProbeConfig, probe, "probe."), cache_dir, path)


def probe_opened(opened: OpenedModel, config: ProbeConfig, cache_dir: str, path: str | None = None) -> ProbeResult:
    """Test the heads of an opened model on the stories or on English; arguments as `probe_model`."""
    if path is not None and opened.has_stories:
        remedy = "leave path or items out" if opened.is_external else "eval.py path= tests a run on other text"
        raise UserError(f"path={path}: the model is tested on the stories; {remedy}")
    config = affordable(config, opened)
    corpus = None if opened.data is None else load_data(opened, cache_dir)
    fingerprint = opened.data_fingerprint if corpus is None else corpus.fingerprint
    results = empty_results(opened, config, TestedData(fingerprint=fingerprint))

    # Questions for the model: the stories; or the next pronoun in English text.
    if not opened.has_stories:
        results = _probe_text(opened, english_text(path, corpus), results)
        return ProbeResult(opened, results.rounded(), {})
    assert corpus is not None
    items = story_items(opened, corpus, config)
    results = replace(results, data=items.data, warnings=[*results.warnings, *items.warnings])
    return _studied(opened, results, items, config)


def probe_own_question(opened: OpenedModel, own: OwnQuestion, config: ProbeConfig) -> ProbeResult:
    """Test the heads of an opened model on a question of the user's own (data/own_items.py).

    Raises UserError if the model cannot read the texts.
    """
    config = affordable(config, opened)
    items, question = own_items(opened, own)
    results = empty_results(opened, config, items.data, items.warnings)
    return _studied(opened, results, items, config, [question])


def empty_results(
    opened: OpenedModel, config: ProbeConfig, data: TestedData, warnings: Sequence[str] = ()
) -> ProbeResults:
    """Return results that say which model is tested on what, and nothing more yet."""
    return ProbeResults(
        schema_version=SCHEMA_VERSION,
        model=tested_model(opened),
        settings=config,
        warnings=[*opened.resumed, *warnings],
        data=data,
    )


def tested_model(opened: OpenedModel) -> TestedModel:
    """Return what results say about the model that they are about."""
    trained_on = None if opened.data is None or opened.is_external else opened.data.source
    return TestedModel(opened.source, opened.step, trained_on, dict(opened.shape))


def _studied(
    opened: OpenedModel,
    results: ProbeResults,
    items: KnownItems,
    config: ProbeConfig,
    questions: Sequence[Question] = QUESTIONS,
) -> ProbeResult:
    """Return `results` with the study of links, with untrained models made one at a time: memory holds one of them."""
    untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained))
    try:
        study = study_links(
            opened.model, untrained, items.dev, items.test, config, progress_with_time("links"), questions
        )
    finally:
        show_progress("")
    results = replace(
        results,
        contract=study.contract,
        attention=study.attention,
        behaviour=study.behaviour,
        selected=study.selected,
        showcase=_worked_examples(opened, study),
    )
    return ProbeResult(opened, results.rounded(), {"dev": study.dev, "test": study.test})


def affordable(config: ProbeConfig, opened: OpenedModel) -> ProbeConfig:
    """Return the settings of the probe, for a large model on a CPU with limits: it would take hours."""
    if not _is_large(opened) or opened.model.device.type != "cpu":
        return config
    return replace(
        config,
        tokens_per_batch=min(config.tokens_per_batch, LARGE_MODEL_TOKENS),
        n_untrained=min(config.n_untrained, MAX_UNTRAINED_LARGE),
    )


def _probe_text(opened: OpenedModel, text: EnglishText, results: ProbeResults) -> ProbeResults:
    """Return `results` with what a text shows of the next pronoun."""
    next_pronoun, missing = probe_next_pronoun(opened, text, results.settings)
    notes = screening_notes(next_pronoun, opened.model.n_layer * opened.model.n_head)
    if opened.is_external:
        notes = ["The training data of this model is unknown, so it may have seen this text.", *notes]
    return replace(results, next_pronoun=next_pronoun, missing=missing, warnings=[*results.warnings, *notes])


def _worked_examples(opened: OpenedModel, study: LinkStudy) -> dict[str, list[ShowcaseExample]]:
    """Return the worked examples of each question, measured at the head that was chosen for it."""
    showcase = {}
    for result in study.selected:
        if result.question in SHOWCASE and result.own is None:
            examples = SHOWCASE[result.question]
            showcase[result.question] = [opened.measure_example(example, result.place) for example in examples]
    return showcase


def show_progress(question: str) -> None:
    """Show on a terminal which question is being tested; "" clears the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{f'testing {question} ...' if question else ''}\033[K")
        sys.stderr.flush()


def progress_with_time(name: str) -> Callable[[str, float], None]:
    """Return a function that shows the stage of a study, its finished share, and about how long it will still take.

    A share of 0 begins to count anew.
    """
    start = time.monotonic()

    def show(stage: str, share: float) -> None:
        nonlocal start
        if share == 0:
            start = time.monotonic()
        show_progress(f"{name}: {stage}{time_left(start, share)}")

    return show


def _is_large(opened: OpenedModel) -> bool:
    """Return whether every pass of a model is slow on a CPU."""
    return opened.n_parameters > LARGE_MODEL


# English text


@contextmanager
def study_progress(opened: OpenedModel, text: EnglishText, config: ProbeConfig) -> Iterator[StudyProgress | None]:
    """Yield the progress of all questions about a text, None for a small model."""
    if not _is_large(opened):
        yield None
        return

    # The work of each question, in unedited passes over one text.
    work: dict[str, float] = {}
    for question, passages in text.passages.items():
        items = question_items(opened.model, opened.tokenizer, opened.bos_id, question, passages, config)
        work[_next_pronoun_name(question)] = planned_work(opened.model, items, config)
    progress = StudyProgress(work)
    try:
        yield progress
    finally:
        progress.close()


def _next_pronoun_name(question: str) -> str:
    return f"the next pronoun ({question})"


def probe_next_pronoun(
    opened: OpenedModel, text: EnglishText, config: ProbeConfig
) -> tuple[list[NextPronounResult], list[str]]:
    """Return the results on the next pronoun, and a sentence for each question that cannot be tested."""
    results: list[NextPronounResult] = []
    missing: list[str] = []
    try:
        with study_progress(opened, text, config) as progress:
            for question, passages in text.passages.items():
                untrained = (opened.untrained(config.seed + i) for i in range(config.n_untrained))
                name = _next_pronoun_name(question)
                result = study_next_pronoun(
                    opened.model,
                    untrained,
                    opened.tokenizer,
                    opened.bos_id,
                    question,
                    passages,
                    text.documents,
                    config,
                    progress_with_time(name) if progress is None else partial(progress.show, name),
                )
                if isinstance(result, str):
                    missing.append(result)
                else:
                    results.append(result)
    finally:
        show_progress("")
    return results, missing
