"""The modes of eval.py: choose the mode that the settings select, open the model, and call it."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from antecedent_lab.api import affordable, compare_models, open_model, probe_source, weights_of
from antecedent_lab.eval_settings import STORIES, EvalSettings
from antecedent_lab.sources import source_of
from data.stories.lexicon import REFERENTS, pronouns_of
from extras.compare.tables import CHANGE_LEGEND, change_lines, change_tables, largest_first
from extras.page.content import comparison_content, page_content, unknown_note
from extras.page.live import check_live, read_history
from extras.page.page import page
from extras.page.shown import PageFinding
from extras.page.train.stories import training_of
from extras.sweeps import door as sweeps
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.deciding import deciding
from probe.edits import all_heads
from probe.opened_model import OpenedModel
from probe.opened_run import load_data
from probe.results import Head, ProbeResults
from probe.saved import PAGE, folder_name, read_metrics, read_results, results_folder
from probe.sentences import next_tokens, removal_effects, word_attention
from probe.tables import MOST_HEADS, sentence_lines
from settings.errors import UserError, printable
from settings.files import write_files
from settings.train import Precision
from settings.typed_json import json_text
from training.device import choose_device
from training.evaluate import LossSummary, validation_loss
from training.metrics import ValidationRecord
from training.run_dir import find_run


def evaluate(settings: EvalSettings, config: ProbeConfig) -> None:
    """Run the mode that the settings select."""
    tested = partial(probed, settings, config)
    if settings.mode == "runs":
        sweeps.compare_sweep(Path(str(settings.runs)), tested)
        return
    if settings.mode == "models":
        models = []
        for name in settings.models:
            opened = _open(name, "model", replace(settings, out=None))
            models.append((name, opened.shape, weights_of(opened)))
        sweeps.compare_models(models, settings.out, tested)
        return
    opened = _open_first(settings)
    check_live(opened, settings.live)
    if settings.mode == "before":
        _compare(opened, settings, config)
    elif settings.mode == "text":
        _look_at_sentence(opened, settings)
    elif settings.mode == "write":
        _write(opened, settings)
    else:
        if opened.transformer is not None and not opened.has_stories and not (settings.path or settings.own_file):
            _print_loss(opened, opened.transformer, settings.cache_dir, config)
        probe(opened, settings, config)


def probed(settings: EvalSettings, config: ProbeConfig, name: str) -> ProbeResults:
    """Return the probe.json of one of several models, which is tested now if it has not been with these settings."""
    settings = replace(settings, out=None)
    opened = _open(name, "model", settings)
    results, _ = read_results(opened)
    if results is None or results.settings != affordable(config, opened):
        results = probe(opened, settings, config, lambda lines: None)
    return results


def _open(name: str, setting: str, settings: EvalSettings) -> OpenedModel:
    """Open a model that a setting names; of several those of other programs get the settings for such models."""
    of_model: dict[str, Any] = {"device": settings.device, "threads": settings.threads, "setting": setting}
    is_run = (Path(name) / "checkpoints").is_dir()
    if not (is_run and (settings.before or settings.models)):
        of_model |= {"stories": settings.items == STORIES, "tokenizer": settings.tokenizer}
    if setting != "before":
        of_model |= {"out": settings.out, "checkpoint": settings.checkpoint}
    return open_model(name, **of_model)


def _open_first(settings: EvalSettings) -> OpenedModel:
    """Open the model that is tested, and print its name, step and device."""
    setting = "model" if settings.run is None else "run"
    opened = _open(settings.model or str(find_run(settings.run)), setting, settings)
    if opened.settings is None:
        line = f"model {opened.source} ({opened.shape['model_type']}); results in {opened.folder}"
    else:
        of_all = f"step {opened.step} of {opened.settings.run.max_steps}"
        line = f"run {opened.folder}, checkpoint {opened.checkpoint}: {of_all}"
        metrics = read_metrics(opened)
        if metrics.validation and not metrics.has_ended(opened.settings.run.max_steps):  # a model of a page has none
            line += " (its training has not ended)"
    device = choose_device(settings.device, Precision.float32, settings.threads).description
    print(printable(f"{line}; {device}"), flush=True)
    return opened


def probe(
    opened: OpenedModel, settings: EvalSettings, config: ProbeConfig, log: Callable[[str], None] = print
) -> ProbeResults:
    """Test the heads of a model, print the results and write the folder; print the page's address."""
    config = affordable(config, opened)
    source = source_of(opened, config, settings.cache_dir, settings.path, settings.own_file)
    kind = "own" if settings.own_file else "outside"
    subfolder = f"{kind}/{folder_name(source.name)}" if source.name else ""

    # The folder is locked before minutes of work begin.
    with results_folder(opened.folder, opened.results_folder / subfolder, log) as folder:
        result = probe_source(opened, source, config, settings.cache_dir)
        log(printable("\n".join(["", *result.lines(verbose=settings.verbose)])))
        if folder is not None:
            result.save(folder, live=settings.live, figures=settings.figures)
            log(_address(folder))
    return result.results


def _address(folder: Path) -> str:
    return f"\nreport {(folder / PAGE).resolve().as_uri()}"


def _print_loss(opened: OpenedModel, model: Transformer, cache_dir: str, config: ProbeConfig) -> None:
    """Print the loss of a run on its whole validation text: the one that train.py printed, or measured now."""
    # The last record of this step on the whole text; train.py has none if the best step was not the last.
    corpus = load_data(opened, cache_dir)
    losses: ValidationRecord | LossSummary | None = None
    for record in read_metrics(opened).validation:
        if record.whole and record.step == opened.step:
            losses = record
    if losses is None:
        losses = validation_loss(model, corpus.validation, config.tokens_per_batch)
    n_tokens = len(corpus.validation.tokens) - 1
    print(
        f"loss {losses.loss:.4f} nats/token, {losses.bits_per_byte:.4f} bits/byte over {n_tokens:,} validation tokens"
    )
    for note in corpus.notes:
        print(printable(f"note: {note}"))


def _compare(opened: OpenedModel, settings: EvalSettings, config: ProbeConfig) -> None:
    """Compare a model with the one of before=, print the tables and write probe/compared/NAME of the first."""
    before = _open(str(settings.before), "before", settings)
    print(printable(f"compared with {before.source}"), flush=True)
    name = before.source
    arguments = [f"before={before.source}"]
    if settings.own_file:
        name += f"_{Path(settings.own_file).stem}"
        arguments.append(f"items={settings.own_file}")

    # The folder is locked before minutes of work begin.
    with results_folder(opened.folder, opened.results_folder / "compared" / folder_name(name)) as folder:
        results = compare_models(
            before, opened, items=settings.own_file, cache_dir=settings.cache_dir, **asdict(config)
        )
        print(printable("\n".join(change_lines(results, all_rows=settings.verbose))))
        if folder is not None:
            content = comparison_content(before, opened, results, changed(results), arguments, settings.live)
            write_files(folder, {"comparison.json": json_text(results), PAGE: page(content)}, "comparison.json")
            print(_address(folder))


def changed(results: ProbeResults) -> list[PageFinding]:
    """Return what changed for each question, for the page; the place is the head that changed most."""
    findings = []
    for question, table in change_tables(results, all_rows=True).items():
        changes = largest_first(change for change in results.changes if change.question == question)
        most = next(change.head for change in changes if change.head)
        findings.append(PageFinding(
            question=question, description=table.title, verdict="compared", heads=str(most), place=most,
            claim=f"{'; '.join(table.note.splitlines())}.",
            tables=[replace(table, title="What changed", note=CHANGE_LEGEND)],
            does_not_show=[
                "that a head that changed is why the answer changed",
                "that heads of one place are the same head, if the models did not start from the same weights",
            ],
            reasons=[],
        ))  # fmt: skip
    return findings


def _look_at_sentence(opened: OpenedModel, settings: EvalSettings) -> None:
    """Print the attention of the heads that matter most in the user's sentence, and add the sentence to the page."""
    text = str(settings.text)
    tokenized = opened.tokenize(text)
    if len(tokenized.tokens) > opened.model.context_length:
        limit = opened.model.context_length - 1
        raise UserError(f"text=: has {len(tokenized.tokens) - 1} tokens; this model reads at most {limit}")
    rows = _nouns_before(tokenized.words)
    with results_folder(opened.folder, opened.results_folder) as folder:
        results, missing = read_results(opened)

        for line in unknown_note(opened, tokenized):
            print(f"note: {printable(line)}")
        weights = word_attention(opened.model, tokenized)
        effects = None
        if not settings.verbose and len(all_heads(opened.model)) > MOST_HEADS:
            effects = {row: removal_effects(opened.model, tokenized, row) for row in rows}
        lines = sentence_lines(tokenized, weights, rows, _chosen_heads(results), effects)
        best = next_tokens(opened.model, tokenized.tokens, 5)
        chances = ", ".join(f"{opened.decode(token)} {chance:.2f}" for token, chance in best)
        decides = deciding(opened.model, tokenized, opened.decode).statement()
        print(printable("\n".join([*lines, "", f"next word: {chances}", decides])))

        if folder is not None:
            content = page_content(
                opened,
                results,
                read_history(opened),
                [text],
                missing,
                settings.live,
                training_of(opened, settings.cache_dir),
            )
            write_files(folder, {PAGE: page(content)})
            print(f"{_address(folder)}#yours-1")


def _write(opened: OpenedModel, settings: EvalSettings) -> None:
    """Print a text, and after it what the model writes, as it is written."""
    text = str(settings.write)
    tokenized = opened.tokenize(text)
    for line in unknown_note(opened, tokenized):
        print(f"note: {printable(line)}")
    names = ("n", "length", "temperature", "top_k", "seed")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    for pieces in opened.pieces(text, **given):
        print(printable(f"\n{text}"), end="", flush=True)
        for piece in pieces:
            print(printable(piece), end="", flush=True)
        print()


def _nouns_before(words: list[str]) -> dict[int, list[str]]:
    """Return the known nouns and names before each pronoun, or else before the last word, by its index."""
    rows = pronouns_of(words) or [len(words) - 1]
    nouns = {}
    for row in rows:
        nouns[row] = [word for word in dict.fromkeys(words[:row]) if word in REFERENTS]
    return nouns


def _chosen_heads(results: ProbeResults | None) -> dict[Head, list[str]]:
    """Return the questions for which the probe chose a head, with the verdict on it."""
    chosen: dict[Head, list[str]] = {}
    for finding in results.findings if results else ():
        chosen.setdefault(finding.place, []).append(f"{finding.question} ({finding.verdict})")
    return chosen
