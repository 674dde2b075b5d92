"""Two models side by side on the same items, for example before and after fine-tuning."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from antecedent_lab.api import affordable, progress_with_time, show_progress, tested_model
from antecedent_lab.english_text import EnglishText, english_text
from antecedent_lab.known_items import KnownItems, own_items, story_items
from antecedent_lab.opened import load_data
from antecedent_lab.saved import folder_name, results_folder
from data.errors import UserError, printable
from data.links import LinkItem
from data.own_items import OwnQuestion
from data.typed_json import from_json, to_json
from probe.config import ProbeConfig
from probe.items import HEADLINE, QUESTIONS, Question, questions_with_items
from probe.next_pronoun import QUESTION_NAMES, Progress, QuestionItems, question_items
from probe.opened_model import OpenedModel
from probe.results import TestedData
from probe.two_models import COMPARISON_VERSION, QuestionChanges, TwoModels, compare_links, compare_passages
from report.two_models import DECISIONS, comparison_lines
from training.files import write_files


@dataclass(frozen=True)
class _SameItems:
    """The items of both models, whose tokens are the same."""

    questions: list[Question]
    known: KnownItems
    passages: dict[str, QuestionItems]  # by question about the next pronoun
    missing: list[str]
    fingerprint: str


def compare_models(
    before: OpenedModel,
    after: OpenedModel,
    *,
    own: OwnQuestion | None = None,
    config: ProbeConfig | None = None,
    cache_dir: str = ".cache",
) -> TwoModels:
    """Compare two opened models of one shape and tokenizer, item by item, with paired tests.

    The items are those that `probe_model` would test `after` on, or with `own` those of a question of the user's own.
    Raises UserError if the models differ in shape or tokens, or cannot read the items.
    """
    _check_comparable(before, after)
    config = affordable(config or ProbeConfig(), after)
    items = _same_items(before, after, own, config, cache_dir)

    # Links, one question after the other; then the next pronoun.
    questions: list[QuestionChanges] = []
    try:
        show = progress_with_time("two models")
        n_questions = len(items.questions) + len(items.passages)
        for question in items.questions:
            show(question.name, len(questions) / n_questions)
            dev = _matching(items.known.dev, question, "iid")
            test = _matching(items.known.test, question, HEADLINE)
            changes = compare_links(before.model, after.model, dev, test, config)
            questions.append(QuestionChanges(question.name, question.description, changes))
        for name, passages in items.passages.items():
            changes = compare_passages(
                before.model,
                after.model,
                passages.choosing,
                passages.tested,
                config,
                partial(_show_part, show, len(questions), n_questions),
            )
            questions.append(QuestionChanges(QUESTION_NAMES[name], DECISIONS[name], changes))
    finally:
        show_progress("")
    if not questions:
        raise UserError(f"no question can be asked: {'; '.join(items.missing)}")
    result = TwoModels(
        schema_version=COMPARISON_VERSION,
        before=tested_model(before),
        after=tested_model(after),
        settings=config,
        fingerprint=items.fingerprint,
        warnings=items.known.warnings,
        missing=items.missing,
        questions=questions,
    )
    # As the file has it, so that nothing is shown that it does not say.
    rounded: TwoModels = from_json(TwoModels, to_json(result), "comparison.json")
    return rounded


def print_comparison(
    before: OpenedModel,
    after: OpenedModel,
    own: OwnQuestion | None,
    config: ProbeConfig,
    cache_dir: str,
    *,
    all_rows: bool,
) -> None:
    """Compare two models, print the tables and write probe/compared/NAME of the second one."""
    name = folder_name(f"{before.name}_{own.name}" if own else before.name)
    with results_folder(after, subfolder=f"compared/{name}") as folder:
        result = compare_models(before, after, own=own, config=config, cache_dir=cache_dir)
        try:
            if folder is not None:
                files = {
                    "comparison.json": json.dumps(to_json(result), indent=2) + "\n",
                    "comparison.md": "\n".join(["```", *comparison_lines(result, all_rows=True), "```", ""]),
                }
                write_files(folder, files, "comparison.json")
        finally:
            print(printable("\n".join(comparison_lines(result, all_rows=all_rows))))
        if folder is not None:
            print(f"\nwrote {folder}/comparison.json and .md")


def _show_part(show: Progress, n_done: int, n_questions: int, stage: str, share: float) -> None:
    """Show the stage of one question of several; `share` is unknown, because both models are one question."""
    show(stage, n_done / n_questions)


def _matching(items: Sequence[LinkItem], question: Question, holdout: str) -> list[LinkItem]:
    return [item for item in items if question.matches(item) and item.holdout == holdout]


def _check_comparable(before: OpenedModel, after: OpenedModel) -> None:
    """Raise UserError if the heads or the tokens of two models do not correspond."""
    for opened in (before, after):
        if not opened.is_causal:
            raise UserError(f"{opened.source}: with model.mask=none a word sees the next one; it cannot be compared")
    shapes = []
    for opened in (before, after):
        shapes.append(f"{opened.model.n_layer} layers of {opened.model.n_head} heads")
    if shapes[0] != shapes[1]:
        problem = f"has {shapes[0]}, {after.source} has {shapes[1]}"
        raise UserError(f"before={before.source}: {problem}; models are compared head by head")


def _same_items(
    before: OpenedModel, after: OpenedModel, own: OwnQuestion | None, config: ProbeConfig, cache_dir: str
) -> _SameItems:
    """Return the items in the tokens of both models; UserError if these differ."""
    passages: dict[str, QuestionItems] = {}
    missing: list[str] = []
    corpus = None
    if own is None and after.data is not None:
        corpus = load_data(after, cache_dir)
    if own is not None:
        known, question = own_items(after, own)
        questions = [question]
        known_before = own_items(before, own)[0]
    elif corpus is not None and after.has_stories:
        known = story_items(after, corpus, config)
        known_before = story_items(before, corpus, config)
        questions = [question for question in QUESTIONS if question.watched]
    else:
        known = known_before = KnownItems([], [], TestedData(fingerprint=after.data_fingerprint), [])
        questions = []
        passages, missing = _passages(before, after, english_text(None, corpus), config)
    for ours, theirs in ((known.dev, known_before.dev), (known.test, known_before.test)):
        _check_same([item.tokens for item in ours], [item.tokens for item in theirs], before, after)

    # Only questions with items
    questions = questions_with_items(questions, [item for item in known.dev if item.holdout == "iid"])
    questions = questions_with_items(questions, [item for item in known.test if item.holdout == HEADLINE])
    return _SameItems(questions, known, passages, missing, known.data.fingerprint)


def _passages(
    before: OpenedModel, after: OpenedModel, text: EnglishText, config: ProbeConfig
) -> tuple[dict[str, QuestionItems], list[str]]:
    """Return the passages before a pronoun of each question that can be asked, and why others cannot."""
    found: dict[str, QuestionItems] = {}
    missing = []
    for name, passages in text.passages.items():
        both = []
        for opened in (before, after):
            both.append(question_items(opened.model, opened.tokenizer, opened.bos_id, name, passages, config))
        theirs, ours = both
        if ours.problem:
            missing.append(ours.problem)
            continue
        for part, other in ((ours.choosing, theirs.choosing), (ours.tested, theirs.tested)):
            _check_same([item.texts for item in part], [item.texts for item in other], before, after)
        found[name] = ours
    return found, missing


def _check_same(ours: Sequence[object], theirs: Sequence[object], before: OpenedModel, after: OpenedModel) -> None:
    """Raise UserError unless both models read the same tokens."""
    if ours != theirs:
        problem = f"reads the sentences as other tokens than {after.source}"
        raise UserError(f"before={before.source}: {problem}; items are compared one by one")
