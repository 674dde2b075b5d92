"""The modes of eval.py for one model: test its heads, measure its loss, look at a sentence, test it on a text."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from antecedent_lab.api import (
    ProbeResult,
    affordable,
    probe_next_pronoun,
    probe_opened,
    probe_own_question,
)
from antecedent_lab.english_text import EnglishText, english_text
from antecedent_lab.eval_settings import EvalSettings
from antecedent_lab.opened import load_data
from antecedent_lab.saved import (
    PAGE,
    TEXTS,
    folder_name,
    read_history,
    read_metrics,
    read_results,
    read_texts,
    results_folder,
    show_page,
)
from data.corpus import Corpus
from data.errors import UserError, printable
from data.own_items import load_own_question
from data.stories.lexicon import REFERENTS
from data.stories.lint import PronounNote, lint
from data.typed_json import from_json, to_json
from probe.config import ProbeConfig
from probe.next_pronoun import confirm_decision
from probe.opened_model import OpenedModel, OpenedRun
from probe.results import Confirmation, Head, NextPronounResult, ProbeResults
from probe.sentences import TokenizedText, removal_effects, word_attention
from report.content import page_content, unknown_note
from report.live import check_live
from report.next_pronoun import confirmation_lines, next_pronoun_lines, next_pronoun_tables, screening_notes
from report.page import page
from report.tables import MOST_HEADS, detail_lines, sentence_lines, table_lines
from training.evaluate import LossSummary, validation_loss
from training.files import write_files
from training.logging import gap_lines
from training.metrics import Metrics, ValidationRecord

MAX_TEXTS = 12  # that a page keeps


# One model


def probe_heads(
    opened: OpenedModel, settings: EvalSettings, config: ProbeConfig, log: Callable[[str], None] = print
) -> bool:
    """Test the heads of a model, print the results and write the probe/ folder; False if it cannot be written."""
    check_live(opened, settings.live)
    if isinstance(opened, OpenedRun) and not opened.has_stories:
        print_loss(opened, load_data(opened, settings.cache_dir), read_metrics(opened), config, log)
    # The folder is locked before minutes of work begin.
    with results_folder(opened, log) as folder:
        result = probe_opened(opened, config, settings.cache_dir)
        _print_and_save(result, folder, settings, log, read_texts(opened.folder))
    return folder is not None


def ask_own_question(opened: OpenedModel, file: str, settings: EvalSettings, config: ProbeConfig) -> None:
    """Test the heads of a model on a question of the user's own, and write probe/own/NAME/; print its page's address.

    The results of the questions that come with the program stay as they are.
    """
    check_live(opened, settings.live)
    own = load_own_question(Path(file))
    with results_folder(opened, subfolder=f"own/{folder_name(own.name)}") as folder:
        result = probe_own_question(opened, own, config)
        _print_and_save(result, folder, settings, print)
    if folder is not None:
        show_page(folder / PAGE, in_browser=settings.open)


def _print_and_save(
    result: ProbeResult,
    folder: Path | None,
    settings: EvalSettings,
    log: Callable[[str], None],
    texts: Sequence[str] = (),
) -> None:
    """Write results to a folder, and print them; the files are there before the reader of the lines can end."""
    try:
        if folder is not None:
            result.save(folder, texts, live=settings.live)
    finally:  # minutes of work are shown on a full disk too
        lines = ["", *result.lines()]
        if settings.verbose:
            lines += _verbose_lines(result.results)
        log(printable("\n".join([*lines, *(f"note: {line}" for line in result.results.warnings)])))


def _verbose_lines(results: ProbeResults) -> list[str]:
    """Return all tables of the evidence, as lines."""
    return [*table_lines(next_pronoun_tables(results.next_pronoun)), *detail_lines(results)]


def print_loss(
    opened: OpenedRun, corpus: Corpus, metrics: Metrics, config: ProbeConfig, log: Callable[[str], None] = print
) -> None:
    """Print the loss of a run on its whole validation text: the one that train.py printed, or measured now."""
    # The last record of this step on the whole text; train.py has none if the best step was not the last.
    split = corpus.validation
    losses: ValidationRecord | LossSummary | None = None
    for record in metrics.validation:
        if record.whole and record.step == opened.step:
            losses = record
    if losses is None:
        losses = validation_loss(opened.transformer, split, config.tokens_per_batch)
    # The loss, and its distance from the entropy lower bound where that is known
    n_tokens = len(split.tokens) - 1
    log(f"loss {losses.loss:.4f} nats/token, {losses.bits_per_byte:.4f} bits/byte over {n_tokens:,} validation tokens")
    for note in corpus.notes:
        log(printable(f"note: {note}"))
    for line in gap_lines(losses.gap, losses.gap_error, losses.gap_by_class, is_causal=opened.is_causal):
        log(line)


def look_at_sentence(opened: OpenedModel, text: str, live: bool | None = None, *, all_heads: bool = False) -> bool:
    """Print the attention of every head at the pronouns of the user's sentence, and add the sentence to the page.

    `live` as in `page_content`. Without `all_heads`, the ten heads that matter most are printed. Return whether the
    page could be written; UserError if the text is empty or too long.
    """
    check_live(opened, live)
    if not text.strip():
        raise UserError("text=: the text is empty")
    tokenized = opened.tokenize(text)
    if not opened.fits(tokenized):
        limit = opened.model.context_length - 1
        raise UserError(f"text=: has {len(tokenized.tokens) - 1} tokens; this model reads at most {limit}")
    notes = lint(text)
    rows = _nouns_before(tokenized, notes)
    with results_folder(opened) as folder:
        results, missing = read_results(opened)

        # Printed lines
        for line in [*unknown_note(opened, tokenized), *(note.note for note in notes)]:
            print(f"note: {printable(line)}")
        [weights] = word_attention(opened.model, [tokenized])
        effects = None
        if not all_heads and opened.model.n_layer * opened.model.n_head > MOST_HEADS:
            effects = {row: removal_effects(opened.model, tokenized, row) for row in rows}
        lines = sentence_lines(tokenized, weights, rows, _chosen_heads(results), effects)
        no_pronoun = ["note: no pronoun (it, they, she, he and their forms) in the text; the page shows its attention"]
        print(printable("\n".join(lines or no_pronoun)))

        # The page with the newest sentences first
        if folder is not None:
            earlier = [shown for shown in read_texts(opened.folder) if shown != text]
            texts = [text, *earlier][:MAX_TEXTS]
            records = (read_metrics(opened), read_history(opened))
            content = page_content(opened, results, *records, texts, missing, live)
            write_files(folder, {TEXTS: json.dumps(texts, indent=2) + "\n", PAGE: page(content)})
    return folder is not None


def _nouns_before(text: TokenizedText, notes: Sequence[PronounNote]) -> dict[int, list[str]]:
    """Return the known nouns and names before each pronoun, and before a later word that decides, by word index."""
    nouns = {}
    for note in notes:
        # A head is read at the pronoun, and at the word that decides its meaning.
        for span in (note.span, note.clue):
            if span:
                row = 1 + text.word_spans.index(span)
                earlier = dict.fromkeys(text.words[:row])
                nouns[row] = [word for word in earlier if word in REFERENTS or word in note.candidates]
    return nouns


def _chosen_heads(results: ProbeResults | None) -> dict[Head, list[str]]:
    """Return the questions for which the probe chose a head, with the verdict on it."""
    chosen: dict[Head, list[str]] = {}
    for result in results.selected if results else ():
        chosen.setdefault(result.place, []).append(f"{result.question} ({result.verdict})")
    return chosen


# English text


def test_on_text(opened: OpenedModel, path: str, config: ProbeConfig) -> None:
    """Test the heads of a model on the English text of a path, and write probe/outside/NAME.{json,md}.

    Heads that the run's own validation text has chosen are tested too. Raises UserError if no question can be tested.
    """
    text = english_text(path, None)
    config = affordable(config, opened)

    # The heads that the run's own text has chosen, then every head on this text
    earlier = None if opened.is_external else read_results(opened)[0]
    confirmed, not_confirmed = _confirm_heads(opened, text, earlier.next_pronoun if earlier else [], config)
    next_pronoun, missing = probe_next_pronoun(opened, text, config)
    if not next_pronoun and not confirmed:
        reason = next(sentence for sentence in missing if "gender" in sentence)
        raise UserError(f"path={path}: too little to test (is it English prose about people?): {reason}")
    missing += not_confirmed
    if not opened.is_external and earlier is None:
        missing.append("heads chosen on the run's own validation text: run eval.py without path= first")

    # As the file has them, so that nothing is shown that it does not say.
    next_pronoun = from_json(list[NextPronounResult], to_json(next_pronoun), path)
    confirmed = from_json(list[Confirmation], to_json(confirmed), path)
    lines = [*confirmation_lines(confirmed), *next_pronoun_lines(next_pronoun)]
    lines += [f"not tested: {reason}" for reason in missing]
    notes = screening_notes(next_pronoun, opened.model.n_layer * opened.model.n_head)
    if notes:
        lines += ["", *(f"note: {note}" for note in notes)]
    lines += table_lines(next_pronoun_tables(next_pronoun))

    # Files first: the reader of the printed lines may end early. The record has the same form as probe.json.
    record = {
        "path": path,
        "run": opened.source,
        "step": opened.step,
        "settings": config,
        "selected": [result.entry() for result in next_pronoun],
        "next_pronoun_confirmed": confirmed,
        "missing": missing,
        "warnings": notes,
    }
    name = folder_name("_".join(Path(part.strip()).stem for part in path.split(",")))
    with results_folder(opened, subfolder="outside") as folder:
        try:
            if folder is not None:
                files = {
                    f"{name}.json": json.dumps(to_json(record), indent=2) + "\n",
                    f"{name}.md": "\n".join(lines) + "\n",
                }
                write_files(folder, files, f"{name}.json")
        finally:
            print(printable("\n".join(lines)))
        if folder is not None:
            print(f"\nwrote {folder / name}.json and .md")


def _confirm_heads(
    opened: OpenedModel, text: EnglishText, chosen: Sequence[NextPronounResult], config: ProbeConfig
) -> tuple[list[Confirmation], list[str]]:
    """Return the tests on a text of the heads that decide the next pronoun on the run's own validation text.

    The second list says which could not be tested.
    """
    confirmed: list[Confirmation] = []
    missing: list[str] = []
    for result in chosen:
        # The head, or all heads of the set that the verdict is about
        answer = confirm_decision(
            opened.model,
            opened.tokenizer,
            opened.bos_id,
            result.name,
            text.passages.get(result.name, ()),
            result.judged.heads,
            config,
        )
        if isinstance(answer, str):
            missing.append(answer)
        else:
            confirmed.append(answer)
    return confirmed, missing
