"""The modes of eval.py: choose the mode that the settings select, open the model, and call it."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from antecedent_lab.api import affordable, compare_models, open_model, probe_source
from antecedent_lab.eval_settings import EvalSettings
from antecedent_lab.sources import source_of
from data.stories.lexicon import REFERENTS, pronouns_of
from extras.page.content import comparison_content, page_content, unknown_note
from extras.page.live import check_live, read_history
from extras.page.page import page
from extras.sweeps.door import compare_several, compare_sweep
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.edits import all_heads
from probe.opened_model import OpenedModel
from probe.opened_run import load_data
from probe.results import Head, ProbeResults
from probe.saved import PAGE, folder_name, read_metrics, read_results, results_folder
from probe.sentences import next_tokens, removal_effects, word_attention
from probe.tables import MOST_HEADS, change_lines, sentence_lines
from settings.errors import UserError, printable
from settings.files import write_files
from settings.train import Precision
from settings.typed_json import json_text
from training.device import choose_device
from training.evaluate import LossSummary, validation_loss
from training.logging import gap_lines
from training.metrics import ValidationRecord
from training.run_dir import find_run

Log = Callable[[str], None]


def evaluate(settings: EvalSettings, config: ProbeConfig) -> None:
    """Run the mode that the settings select."""
    tested = partial(probed, settings, config)
    if settings.mode == "runs":
        compare_sweep(Path(str(settings.runs)), tested)
        return
    if settings.mode == "models":
        shapes = {name: _open(name, "model", replace(settings, model=name, out=None)).shape for name in settings.models}
        compare_several(shapes, settings.out, tested)
        return
    opened = _open_first(settings)
    if settings.mode == "before":
        _compare(opened, settings, config)
    elif settings.mode == "text":
        _look_at_sentence(opened, settings)
    else:
        probe(opened, settings, config)


def probed(settings: EvalSettings, config: ProbeConfig, name: str, log: Log) -> ProbeResults:
    """Return the probe.json of one of several models, which is tested now if it has not been with these settings."""
    of_one = replace(settings, runs=None, model=name, out=None)
    opened = _open(name, "model", of_one)
    results, _ = read_results(opened)
    if results is None or results.settings != affordable(config, opened):
        log(printable(f"probing {name}"))
        probe(opened, of_one, config, lambda lines: None)
        results, _ = read_results(opened)
        assert results is not None
    return results


def _open(name: str, setting: str, settings: EvalSettings) -> OpenedModel:
    """Open the model that a setting names, with the settings of a model of another program if it is one."""
    of_model: dict[str, Any] = {}
    if not (Path(name) / "checkpoints").is_dir():
        of_model = {"items": None if settings.own_file else settings.items, "tokenizer": settings.tokenizer}
        of_model["out"] = settings.out if setting == "model" else None
    if setting != "before":
        of_model["checkpoint"] = settings.checkpoint
    return open_model(name, **of_model, device=settings.device, threads=settings.threads, setting=setting)


def _open_first(settings: EvalSettings) -> OpenedModel:
    """Open the model that is tested, and print its name, step and device."""
    setting = "model" if settings.run is None else "run"
    name = getattr(settings, setting)
    opened = _open(name if settings.is_external else str(find_run(name, setting)), setting, settings)
    if opened.settings is None:
        line = f"model {opened.source} ({opened.shape['model_type']}); results in {opened.folder}"
    else:
        of_all = f"step {opened.step} of {opened.settings.run.max_steps}"
        line = f"run {opened.folder}, checkpoint {opened.checkpoint}: {of_all}"
        if not read_metrics(opened).has_ended(opened.settings.run.max_steps):
            line += " (its training has not ended)"
    device = choose_device(settings.device, Precision.float32, settings.threads).description
    print(printable(f"{line}; {device}"), flush=True)
    return opened


def probe(opened: OpenedModel, settings: EvalSettings, config: ProbeConfig, log: Log = print) -> None:
    """Test the heads of a model, print the results and write the folder; print the page's address."""
    check_live(opened, settings.live)
    config = affordable(config, opened)
    source = source_of(opened, config, settings.cache_dir, settings.path, settings.own_file)
    if opened.transformer is not None and not opened.has_stories and not source.name:
        _print_loss(opened, opened.transformer, settings.cache_dir, config, log)
    kind = "own" if settings.own_file else "outside"
    subfolder = f"{kind}/{folder_name(source.name)}" if source.name else ""

    # The folder is locked before minutes of work begin.
    with results_folder(opened.folder, opened.results_folder / subfolder, log) as folder:
        result = probe_source(opened, source, config)
        log(printable("\n".join(["", *result.lines(verbose=settings.verbose)])))
        if folder is not None:
            result.save(folder, live=settings.live, figures=settings.figures)
    if folder is not None and log is print:
        print(f"\nreport {(folder / PAGE).resolve().as_uri()}", flush=True)


def _print_loss(opened: OpenedModel, model: Transformer, cache_dir: str, config: ProbeConfig, log: Log) -> None:
    """Print the loss of a run on its whole validation text: the one that train.py printed, or measured now."""
    # The last record of this step on the whole text; train.py has none if the best step was not the last.
    corpus = load_data(opened, cache_dir)
    losses: ValidationRecord | LossSummary | None = None
    for record in read_metrics(opened).validation:
        if record.whole and record.step == opened.step:
            losses = record
    if losses is None:
        losses = validation_loss(model, corpus.validation, config.tokens_per_batch)
    loss = f"{losses.loss:.4f} nats/token, {losses.bits_per_byte:.4f} bits/byte"
    log(f"loss {loss} over {len(corpus.validation.tokens) - 1:,} validation tokens")
    for note in corpus.notes:
        log(printable(f"note: {note}"))
    for line in gap_lines(losses.gap, losses.gap_error):
        log(line)


def _compare(opened: OpenedModel, settings: EvalSettings, config: ProbeConfig) -> None:
    """Compare a model with the one of before=, print the tables and write probe/compared/NAME of the first."""
    check_live(opened, settings.live)
    own_file = settings.own_file
    before = _open(str(settings.before), "before", settings)
    print(printable(f"compared with {before.source}"), flush=True)
    name = folder_name(f"{before.source}_{Path(own_file).stem}" if own_file else before.source)

    # The folder is locked before minutes of work begin.
    with results_folder(opened.folder, opened.results_folder / "compared" / name) as folder:
        results = compare_models(before, opened, items=own_file, cache_dir=settings.cache_dir, **asdict(config))
        print(printable("\n".join(change_lines(results, all_rows=settings.verbose))))
        if folder is not None:
            arguments = [f"before={before.source}", *([f"items={own_file}"] if own_file else [])]
            content = comparison_content(before, opened, results, arguments, settings.live)
            files = {"comparison.json": json_text(results), PAGE: page(content)}
            write_files(folder, files, "comparison.json")
            print(f"\nreport {(folder / PAGE).resolve().as_uri()}")


def _look_at_sentence(opened: OpenedModel, settings: EvalSettings) -> None:
    """Print the attention of the heads that matter most in the user's sentence, and add the sentence to the page."""
    check_live(opened, settings.live)
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
        print(printable("\n".join([*lines, "", f"next word: {chances}"])))

        if folder is not None:
            content = page_content(opened, results, read_history(opened), [text], missing, settings.live)
            write_files(folder, {PAGE: page(content)})
    if folder is not None:
        print(f"\nreport {(folder / PAGE).resolve().as_uri()}#yours-1", flush=True)


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
