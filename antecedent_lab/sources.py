"""The questions for a model, and their items in its tokens, from stories, English text or a file."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from antecedent_lab.opened import load_data
from data.corpus import Corpus, load_stories, split_documents
from data.errors import UserError
from data.own_file import OwnQuestion, load_question
from data.pairs import Items, LinkedText, link_pairs
from data.passages import find_passages, sections
from data.stories import GENERATOR_VERSION, leakage
from data.text import SHIPPED_TEXT, read_documents, text_files
from probe.config import Holdouts, ProbeConfig
from probe.opened_model import OpenedModel
from probe.questions import DEV, PASSAGE_QUESTIONS, STORY_QUESTIONS, Question, names_of, question_of_file
from probe.study import passages_of, with_dev


@dataclass(frozen=True)
class Source:
    """Questions for a model, and their items in its tokens."""

    name: str  # folder for the results; "": the model's own folder
    questions: list[Question]
    items: Items
    data: dict[str, Any]  # for probe.json
    documents: list[tuple[str, str]] = field(default_factory=list)  # name and text, of English text
    warnings: list[str] = field(default_factory=list)


def source_of(
    opened: OpenedModel, config: ProbeConfig, cache_dir: str, path: str | None = None, own: str | None = None
) -> Source:
    """Return the questions of the file `own`, else of the English text of `path`, else of the training data.

    An external model gets the stories if it was opened with them, else the text that comes with the project.
    """
    if own is not None:
        return own_source(opened, load_question(Path(own)))
    corpus = None if opened.data is None or path is not None else load_data(opened, cache_dir)
    if corpus is not None and opened.has_stories:
        return story_source(opened, corpus, config)
    return text_source(opened, corpus, path, config)


def story_source(opened: OpenedModel, corpus: Corpus, config: ProbeConfig) -> Source:
    """Return the stories; UserError if an external model cannot read them."""
    dev_stories = load_stories(corpus, "dev")
    test_stories = load_stories(corpus, "test")
    if config.holdouts is Holdouts.all:
        test_stories += load_stories(corpus, "test_others")
    dev, test = (link_pairs(each, opened.tokenizer, opened.bos_id, names_of) for each in (dev_stories, test_stories))
    data = {"fingerprint": corpus.fingerprint, "generator_version": GENERATOR_VERSION}

    # A run must not have been trained on the test stories; an external model must know their words.
    warnings: list[str] = []
    if opened.is_external:
        warnings = check_items(opened, dev + test)
    else:
        data |= leakage(split_documents(corpus, corpus.train), test_stories)
    return Source("", list(STORY_QUESTIONS), with_dev(dev, test), data, [], warnings)


def text_source(opened: OpenedModel, corpus: Corpus | None, path: str | None, config: ProbeConfig) -> Source:
    """Return the passages of English text: of `path`, of a run's validation text, or of the shipped one."""
    if path is None and corpus is not None:
        texts = split_documents(corpus, corpus.validation)
    else:
        texts = read_documents(text_files(path or str(SHIPPED_TEXT), "path"))
    documents = sections(texts)
    items = Items([])
    for kind, question in PASSAGE_QUESTIONS.items():
        passages = [passage for name, text in documents for passage in find_passages(name, text, kind)]
        items += passages_of(opened.model, (opened.tokenizer, opened.bos_id), question, passages, config)
    fingerprint = opened.data_fingerprint if path is None else _fingerprint_of(texts)
    warnings = [_UNKNOWN_TRAINING] if opened.is_external else []
    name = "" if path is None else "_".join(Path(part.strip()).stem for part in path.split(","))
    return Source(name, list(PASSAGE_QUESTIONS.values()), items, {"fingerprint": fingerprint}, documents, warnings)


def own_source(opened: OpenedModel, own: OwnQuestion) -> Source:
    """Return the texts of a question of the user's own; UserError if the model cannot read them."""
    texts = [*own.dev, *own.test]
    for text in texts:
        _check_text(opened, text, own.places[text.text])
    names = [own.name]
    dev, test = (link_pairs(part, opened.tokenizer, opened.bos_id, lambda *_: names) for part in (own.dev, own.test))
    warnings = check_items(opened, dev + test)
    if not opened.is_external:
        warnings[0] = "The texts are the user's own: the model may have seen them in training."

    # What the file leaves open
    n_answers = sum(bool(text.links[0].answers) for text in texts)
    if 0 < n_answers < len(texts):
        warnings.append(f"{len(texts) - n_answers} of {len(texts)} texts have no answers: the causal tests lack them.")
    if own.n_left_out:
        warnings.append(f"{own.n_left_out} blocks are left out: frame and words are not all in dev, or all in test.")
    if own.n_patterns:
        warnings.append(
            f"In {own.n_patterns} of {len(texts) // 2} pairs the text differs before the query: "
            "a head that knows the position from the sentence pattern alone passes too."
        )
    question = question_of_file(own.name, own.description, own.link, own.guards_off, own.file)
    data = {"fingerprint": _fingerprint_of(map(repr, texts))}
    return Source(f"own/{own.name}", [question], dev.named(DEV) + test, data, [], warnings)


_UNKNOWN_TRAINING = "The training data of this model is unknown, so it may have seen these sentences."


def check_items(opened: OpenedModel, items: Items) -> list[str]:
    """Return warnings about texts in the tokens of a model; UserError if it cannot read them."""
    # The model must be able to read all of them.
    tokens = [token for cell in items.cells for token in cell.tokens]
    largest = max(max(*cell.tokens, *cell.answers, *cell.foils) for cell in items.cells)
    longest = 1 + max(len(cell.tokens) for cell in items.cells)
    limit = opened.model.context_length
    if longest > limit:
        raise UserError(f"model={opened.source}: reads {limit} tokens, but the sentences need {longest}")
    if largest >= opened.model.vocab_size:
        raise UserError(f"model={opened.source}: its tokenizer writes token {largest}, which the model lacks")

    # What the results leave open.
    warnings = [_UNKNOWN_TRAINING]
    n_unknown = sum(token == opened.unknown for token in tokens)
    if n_unknown:
        warnings.append(f"Its tokenizer replaces {n_unknown / len(tokens):.1%} of the tokens by unknown.")
    n_lost = sum(cell.has_lost_answer for cell in items.cells)
    if n_lost:
        where = f"In {n_lost:,} of {len(items.cells):,} texts"
        warnings.append(f"{where} both answers begin with the same tokens, so the model's answer is not tested there.")
    return warnings


def _check_text(opened: OpenedModel, text: LinkedText, where: str) -> None:
    """Raise UserError with the row if the model cannot read a text, or a word of it has no tokens for itself."""
    n_tokens = len(opened.encode(text.text))
    if n_tokens > opened.model.context_length:
        raise UserError(f"{where}: has {n_tokens} tokens; the model reads {opened.model.context_length}")
    try:
        link_pairs([text, text], opened.tokenizer, opened.bos_id, lambda *_: [])
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _fingerprint_of(texts: Iterable[str]) -> str:
    """Return a hash of texts."""
    return sha256("\n".join(texts).encode()).hexdigest()
