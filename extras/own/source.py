"""A question of a file as a source of items."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tokenizers import Tokenizer

from data.loader import Corpus
from data.pairs import CONTROL, Items, link_pairs
from data.tokenizer import encode_text, end_id, unknown_id
from extras.own.file import OwnQuestion, load_question
from probe.elsewhere import item_texts
from probe.emergence import spread
from probe.opened_model import OpenedModel
from probe.questions import DEV, LINK_BARS, Question, link_question
from probe.source import UNKNOWN_TRAINING, Source, check_items
from settings.errors import UserError


def own_source(opened: OpenedModel, own: OwnQuestion) -> Source:
    """Return the items of a question in the tokens of a model; UserError if it cannot read them."""
    reader = opened.tokenizer, opened.bos_id
    check_words(own, *reader)
    dev = link_pairs(own.dev, *reader).named(part=DEV)
    items = (dev + link_pairs([*own.test, *own.control], *reader)).named(question=own.name)
    may_be_known = "The texts come from a file: the model may have seen them in training."
    if opened.is_external:
        may_be_known = UNKNOWN_TRAINING
    warnings = [may_be_known, *check_items(opened, items), *own.notes()]
    texts = "\n".join(map(repr, [*own.dev, *own.test, *own.control]))
    data = {"fingerprint": sha256(texts.encode()).hexdigest()}
    tested = item_texts(items.where(lambda pair: pair.part not in (DEV, CONTROL)))
    return Source(own.name, [question_of_file(own)], items, data, tested, warnings=warnings)


def watched_question(path: str, corpus: Corpus, context_length: int, n_sequences: int) -> dict[Question, Items]:
    """Return `n_sequences` texts of dev of a question, to watch in training; UserError if a model cannot read them."""
    own = load_question(Path(path))
    reader = corpus.tokenizer, end_id(corpus.tokenizer)
    check_words(own, *reader)
    items = link_pairs(own.dev, *reader).named(question=own.name)
    longest = 1 + max(len(cell.tokens) for cell in items.cells)
    if longest > context_length:
        raise UserError(f"items={path}: has {longest} tokens in a text, model.context_length={context_length}")
    return {question_of_file(own): spread(items, n_sequences // 4)}


def question_of_file(own: OwnQuestion) -> Question:
    """Return a question of the user's own: one about links, which may have texts without the link."""
    question = link_question(own.name, own.description)
    bars = LINK_BARS if own.control else question.bars
    exclusions = tuple(each for each in question.exclusions if each != own.head_type)
    return replace(question, link="the query to its antecedent", bars=bars, exclusions=exclusions, file=own.file)


def check_words(own: OwnQuestion, tokenizer: Tokenizer, bos_id: int) -> None:
    """Raise UserError with the words that are read or answered and not known, or have no tokens for themselves."""
    words: dict[str, None] = {}  # each once
    for text in (*own.dev, *own.test):
        link = text.link
        for span in (link.query, *link.antecedents, *link.distractors):
            words[text.text[slice(*span)]] = None
        words |= dict.fromkeys(link.answers)
    unknown = [repr(word) for word in words if unknown_id(tokenizer) in encode_text(tokenizer, word).ids]
    if unknown:
        which = f"{len(unknown)} of {len(words)} words that are read or answered"
        raise UserError(f"{own.file}: {which} are not in this model's vocabulary: {', '.join(unknown[:10])}")
    for text in (*own.dev, *own.test):
        try:
            link_pairs([text, text], tokenizer, bos_id)
        except UserError as error:
            raise UserError(f"{own.places[text.text]}: {error}") from None
