"""The questions for a model, and their items in its tokens, from stories, English text or a file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from antecedent_lab.loading import load_data
from data.corpus import corpus_fingerprint, load_stories, split_documents
from data.loader import Corpus
from data.stories import GENERATOR_VERSION
from data.tested.own_file import OwnQuestion, load_question
from data.tested.pairs import Items, LinkedText, link_pairs
from data.tested.passages import Passage, Reader, passage_items, passage_parts, passages_in, sections, with_two
from data.tested.place import MIN_FITTED, fit_place_rule, redrawn
from data.tested.replaced import ContentWords, with_replaced
from data.text import SHIPPED_TEXT, SHIPPED_TRAINING_TEXT, UNSEEN_TEXT, read_documents, text_files
from data.tokenizer import encode_text, unknown_id
from probe.config import ProbeConfig
from probe.edits import all_heads
from probe.opened_model import OpenedModel
from probe.questions import (
    DEV,
    NEXT_PRONOUN,
    REPLACED,
    SAME_WORDS,
    STORY_QUESTIONS,
    TESTED,
    WHOSE,
    Question,
    question_of_file,
)
from settings.data import TextConfig
from settings.errors import UserError

MAX_PASSAGES = (300, 300)  # with one entity and with two; the others are left out at random
MAX_PASSAGES_LARGE = (40, 150)  # for a model of more than MANY_HEADS heads, which is slow
MANY_HEADS = 128
MAX_WHOSE = 2000  # passages with two people and new names
_FITTED_TOKENS = 2**21  # of the training text that the place rule is fitted to
_UNKNOWN_TRAINING = "The training data of this model is unknown, so it may have seen these sentences."


@dataclass(frozen=True)
class Source:
    """Questions for a model, and their items in its tokens."""

    name: str  # the name of the text or file, and of its results folder; "": the model's own questions
    questions: list[Question]
    items: Items
    data: dict[str, Any]  # for probe.json
    documents: list[tuple[str, str]] = field(default_factory=list)  # name and text, of English text
    warnings: list[str] = field(default_factory=list)


def source_of(
    opened: OpenedModel, config: ProbeConfig, cache_dir: str, path: str | None = None, own_file: str | None = None
) -> Source:
    """Return the questions of `own_file`, else of the text of `path`, else of the model; UserError if it reads none."""
    if own_file is not None:
        return _own_source(opened, load_question(Path(own_file)))
    corpus = None if opened.data is None or path is not None else load_data(opened, cache_dir)
    if corpus is not None and opened.has_stories:
        return _story_source(opened, corpus)
    return _text_source(opened, corpus, path, config, cache_dir)


def _story_source(opened: OpenedModel, corpus: Corpus) -> Source:
    reader = (opened.tokenizer, opened.bos_id)
    items = story_items(load_stories(corpus, "dev"), load_stories(corpus, "test"), reader)
    data = {"fingerprint": corpus.fingerprint, "generator_version": GENERATOR_VERSION}

    warnings: list[str] = []
    if opened.is_external:
        warnings = [_UNKNOWN_TRAINING, *check_items(opened, items)]
    return Source("", list(STORY_QUESTIONS), items, data, warnings=warnings)


def _text_source(
    opened: OpenedModel, corpus: Corpus | None, path: str | None, config: ProbeConfig, cache_dir: str
) -> Source:
    """Return the passages of English text: of `path`, of a run's validation text, or of the shipped one."""
    if path is None and corpus is not None:
        texts = split_documents(corpus, corpus.validation)
    else:
        texts = read_documents(text_files(path or str(SHIPPED_TEXT), "path"))
    documents = sections(texts)
    reader = Reader(opened.tokenizer, opened.bos_id, opened.model.context_length)
    n_heads = len(all_heads(opened.model))
    passages = passages_in(documents)
    items = passages_of(reader, n_heads, passages, config)
    questions = [NEXT_PRONOUN]
    warnings = [_UNKNOWN_TRAINING] if opened.is_external else []

    if path is not None:
        warnings.append("Whose gender a head copies is not tested with path=: the place rule is of other text.")
    elif n_heads > MANY_HEADS:
        large = f"in a model of more than {MANY_HEADS} heads"
        warnings.append(f"Whose gender a head copies is not tested {large}: enough passages would take too long.")
    else:
        training = with_two(passages_in(_training_documents(corpus)))
        if len(training) < MIN_FITTED:
            few = f"{len(training)} passages with two people in the training text (needed: {MIN_FITTED})"
            warnings.append(f"Whose gender a head copies is not tested: no place rule with {few}.")
        else:
            if reads_shipped_text(corpus):
                unseen = sections(read_documents([UNSEEN_TEXT]))
                passages += passages_in([(f"unseen {name}", text) for name, text in unseen])
            items += whose_passages_of(reader, with_two(passages), training, config)
            questions.append(WHOSE)

    source_name = ""
    data = {"fingerprint": opened.data_fingerprint}
    if path is not None:
        source_name = "_".join(Path(file.strip()).stem for file in path.split(","))
        data = {"fingerprint": sha256("\n".join(texts).encode()).hexdigest(), "path": path}
    return Source(source_name, questions, items, data, documents, warnings)


def _training_documents(corpus: Corpus | None) -> list[tuple[str, str]]:
    """Return documents of a run's training text, or of the one that comes with the project."""
    if corpus is None:
        return sections(read_documents([SHIPPED_TRAINING_TEXT]))
    return sections(split_documents(corpus, replace(corpus.train, tokens=corpus.train.tokens[:_FITTED_TOKENS])))


def reads_shipped_text(corpus: Corpus | None) -> bool:
    """Return whether a model is tested on the text that comes with the project, and was not trained on UNSEEN_TEXT."""
    if corpus is None:
        return True
    if not isinstance(corpus.config, TextConfig):
        return False
    shipped = replace(corpus.config, path=str(SHIPPED_TRAINING_TEXT), validation_path=str(SHIPPED_TEXT))
    return corpus.fingerprint == corpus_fingerprint(shipped)


def _own_source(opened: OpenedModel, own: OwnQuestion) -> Source:
    _check_texts(opened, own)
    dev = link_pairs(own.dev, opened.tokenizer, opened.bos_id).asked(own.name)
    test = link_pairs([*own.test, *own.control], opened.tokenizer, opened.bos_id).asked(own.name)
    may_be_known = "The texts are the user's own: the model may have seen them in training."
    warnings = [_UNKNOWN_TRAINING if opened.is_external else may_be_known, *check_items(opened, dev + test)]

    question = question_of_file(own.name, own.description, own.link, own.file, has_control=bool(own.control))
    data = {"fingerprint": sha256("\n".join(map(repr, [*own.dev, *own.test, *own.control])).encode()).hexdigest()}
    return Source(own.name, [question], dev.named(DEV) + test, data, warnings=[*warnings, *own.notes()])


def story_items(dev: Iterable[LinkedText], test: Iterable[LinkedText], reader: tuple[Tokenizer, int]) -> Items:
    """Return the pairs of stories that a study needs: of dev those with the words of training, and all of test."""
    known = [text for text in dev if text.holdout == SAME_WORDS]
    return link_pairs(known, *reader).named(DEV) + link_pairs(test, *reader)


def passages_of(reader: Reader, n_heads: int, passages: Sequence[Passage], config: ProbeConfig) -> Items:
    """Return passages in the tokens of a model with `n_heads` heads in all, in two parts."""
    limits = MAX_PASSAGES if n_heads <= MANY_HEADS else MAX_PASSAGES_LARGE
    return passage_parts(passages, NEXT_PRONOUN.name, reader, config.seed, limits)


def whose_passages_of(
    reader: Reader, passages: Sequence[Passage], training: Sequence[Passage], config: ProbeConfig
) -> Items:
    """Return passages with names drawn anew, and the same with every content word replaced.

    All `passages` mention two entities, as those of the `training` text, which the place rule is fitted to and the
    words come from.
    """
    drawn = redrawn(passages, fit_place_rule(training), reader.n_tokens, config.seed)
    items = passage_items(drawn, WHOSE.name, reader, config.seed, MAX_WHOSE, has_two=True, max_share=1.0)
    words = ContentWords([passage.text for passage in training], reader.n_tokens)
    kept, replaced = with_replaced(items, words, reader, config.seed)
    return kept.named(TESTED) + replaced.named(REPLACED)


def check_items(opened: OpenedModel, items: Items) -> list[str]:
    """Return warnings about texts in the tokens of a model; UserError if it cannot read them."""
    tokens = [token for cell in items.cells for token in cell.tokens]
    largest = max(max(*cell.tokens, *cell.answers, *cell.foils) for cell in items.cells)
    longest = 1 + max(len(cell.tokens) for cell in items.cells)
    limit = opened.model.context_length
    if longest > limit:
        raise UserError(f"model={opened.source}: reads {limit} tokens, but the sentences need {longest}")
    if largest >= opened.model.vocab_size:
        raise UserError(f"model={opened.source}: its tokenizer writes token {largest}, which the model lacks")

    warnings = []
    n_unknown = sum(token == opened.unknown for token in tokens)
    if n_unknown:
        warnings.append(f"Its tokenizer replaces {n_unknown / len(tokens):.1%} of the tokens by unknown.")
    n_lost = sum(cell.has_lost_answer for cell in items.cells)
    if n_lost:
        problem = "both answers begin with the same tokens, so the model's answer is not tested there"
        warnings.append(f"In {n_lost:,} of {len(items.cells):,} texts {problem}.")
    return warnings


def _check_texts(opened: OpenedModel, own: OwnQuestion) -> None:
    """Raise UserError if the model cannot read a text, or a word that is read or answered has no tokens for itself."""
    for text in [*own.dev, *own.test]:
        n_tokens = len(opened.encode(text.text))
        if n_tokens > opened.model.context_length:
            problem = f"has {n_tokens} tokens; the model reads {opened.model.context_length}"
            raise UserError(f"{own.places[text.text]}: {problem}")
    check_words(own, opened.tokenizer, opened.bos_id)


def check_words(own: OwnQuestion, tokenizer: Tokenizer, bos_id: int) -> None:
    """Raise UserError with the words that are read or answered and not known, or have no tokens for themselves."""
    problems: dict[str, str] = {}  # by place
    unknown = [repr(word) for word in own.words() if unknown_id(tokenizer) in encode_text(tokenizer, word).ids]
    if unknown:
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        problem = "words that are read or answered are not in this model's vocabulary"
        problems[own.file] = f"{problem}: {', '.join(unknown[:10])}{more}"
    for text in [*own.dev, *own.test]:
        try:
            link_pairs([text, text], tokenizer, bos_id)
        except UserError as error:
            problems.setdefault(own.places[text.text], str(error))
    if problems:
        raise UserError("; ".join(map(": ".join, list(problems.items())[:10])))
