"""English text as a source of items: the passages of documents, and the same with newly drawn names."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from data.corpus import corpus_fingerprint, split_documents
from data.loader import Corpus
from data.pairs import Items
from data.text import SHIPPED_TEXT, SHIPPED_TRAINING_TEXT, UNSEEN_TEXT, read_documents, text_files
from data.tokenizer import end_id
from extras.english.passages import Passage, Reader, passage_items, passages_in, sections, with_two
from extras.english.place import MIN_FITTED, fit_place_rule, redrawn
from extras.english.questions import NEXT_PRONOUN, REPLACED, TESTED, WHOSE
from extras.english.replaced import ContentWords, with_replaced
from probe.config import ProbeConfig
from probe.edits import all_heads
from probe.elsewhere import item_texts
from probe.opened_model import OpenedModel
from probe.questions import DEV, Question
from probe.source import UNKNOWN_TRAINING, Source
from settings.data import TextConfig

MAX_PASSAGES = (300, 300)  # with one entity and with two; the others are left out at random
MAX_PASSAGES_LARGE = (40, 150)  # for a model of more than MANY_HEADS heads, which is slow
MANY_HEADS = 128
MAX_WHOSE = 2000  # passages with two people and new names
MAX_CHARACTERS = 1_000_000  # the part of a validation text that is searched for passages to watch
MIN_PASSAGES = 20  # with one entity, and with two, that a curve of training needs
_FITTED_TOKENS = 2**21  # the place rule is fitted to so much of the training text


def english_source(opened: OpenedModel, corpus: Corpus | None, path: str | None, config: ProbeConfig) -> Source:
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
    tested = item_texts(items)  # as the author wrote them, of both parts; those of WHOSE have other names
    questions = [NEXT_PRONOUN]
    warnings = [UNKNOWN_TRAINING] if opened.is_external else []

    problem = ""
    training = list[Passage]()
    if path is not None:
        problem = "with path=: the place rule is of other text"
    elif n_heads > MANY_HEADS:
        problem = f"in a model of more than {MANY_HEADS} heads: enough passages would take too long"
    else:
        training = with_two(passages_in(_training_documents(corpus)))
        if len(training) < MIN_FITTED:
            problem = f"with {len(training)} passages with two people in the training text (needed: {MIN_FITTED})"
    if problem:
        warnings.append(f"Whose gender a head copies is not tested {problem}.")
    else:
        if reads_shipped_text(corpus):
            passages += passages_in(sections(read_documents([UNSEEN_TEXT]), "unseen "))
        items += whose_passages_of(reader, with_two(passages), training, config)
        questions.append(WHOSE)

    source_name = ""
    data = {"fingerprint": opened.data_fingerprint}
    if path is not None:
        source_name = "_".join(Path(file.strip()).stem for file in path.split(","))
        data = {"fingerprint": sha256("\n".join(texts).encode()).hexdigest(), "path": path}
    return Source(source_name, questions, items, data, tested, documents, warnings)


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


def passages_of(reader: Reader, n_heads: int, passages: Sequence[Passage], config: ProbeConfig) -> Items:
    """Return passages in the tokens of a model with `n_heads` heads in all; a random half of the documents is dev."""
    limits = MAX_PASSAGES if n_heads <= MANY_HEADS else MAX_PASSAGES_LARGE
    items = Items([])
    for has_two, limit in zip((False, True), limits, strict=True):
        items += passage_items(passages, NEXT_PRONOUN.name, reader, config.seed, limit, has_two=has_two)

    documents = np.unique(items.clusterings()[0])
    shuffled = np.random.default_rng(config.seed).permutation(documents)
    of_dev = set(shuffled[: len(documents) // 2].tolist())
    pairs = [replace(pair, part=DEV if pair.clusters[0] in of_dev else TESTED) for pair in items.pairs]
    return Items(pairs, items.left_out)


def whose_passages_of(
    reader: Reader, passages: Sequence[Passage], training: Sequence[Passage], config: ProbeConfig
) -> Items:
    """Return passages with newly drawn names, and the same with every content word replaced.

    All `passages` mention two entities, as those of the `training` text, which the place rule is fitted to and the
    words come from.
    """
    drawn = redrawn(passages, fit_place_rule(training), reader.n_tokens, config.seed)
    items = passage_items(drawn, WHOSE.name, reader, config.seed, MAX_WHOSE, has_two=True, max_share=1.0)
    words = ContentWords([passage.text for passage in training], reader.n_tokens)
    kept, replaced = with_replaced(items, words, reader, config.seed)
    return kept.named(part=TESTED) + replaced.named(part=REPLACED)


def watched_passages(corpus: Corpus, max_tokens: int, n_sequences: int) -> dict[Question, Items]:
    """Return `n_sequences` texts of passages to watch during training, half with one person; none if there are few.

    They are of the first MAX_CHARACTERS of the validation text; the last document may be cut.
    """
    documents = []
    n_left = MAX_CHARACTERS
    for document in split_documents(corpus, corpus.validation):
        documents.append(document[:n_left])
        n_left -= len(documents[-1])

    reader = Reader(corpus.tokenizer, end_id(corpus.tokenizer), max_tokens)
    passages = passages_in(sections(documents))
    of_one, of_two = (
        passage_items(passages, NEXT_PRONOUN.name, reader, 0, n_sequences // 4, has_two=has_two)
        for has_two in (False, True)
    )
    return {NEXT_PRONOUN: of_one + of_two} if min(len(of_one), len(of_two)) >= MIN_PASSAGES else {}
