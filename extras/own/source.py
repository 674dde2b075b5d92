"""A question of a file as a source of items."""

from dataclasses import replace
from hashlib import sha256

from tokenizers import Tokenizer

from data.pairs import link_pairs
from data.tokenizer import encode_text, unknown_id
from extras.own.file import OwnQuestion
from probe.opened_model import OpenedModel
from probe.questions import DEV, LINK_BARS, Question, link_question
from probe.source import UNKNOWN_TRAINING, Source, check_items
from settings.errors import UserError


def own_source(opened: OpenedModel, own: OwnQuestion) -> Source:
    """Return the items of a question in the tokens of a model; UserError if it cannot read them."""
    _check_texts(opened, own)
    dev = link_pairs(own.dev, opened.tokenizer, opened.bos_id).asked(own.name)
    test = link_pairs([*own.test, *own.control], opened.tokenizer, opened.bos_id).asked(own.name)
    may_be_known = "The texts are the user's own: the model may have seen them in training."
    warnings = [UNKNOWN_TRAINING if opened.is_external else may_be_known, *check_items(opened, dev + test)]

    question = question_of_file(own.name, own.description, own.link, own.file, has_control=bool(own.control))
    data = {"fingerprint": sha256("\n".join(map(repr, [*own.dev, *own.test, *own.control])).encode()).hexdigest()}
    return Source(own.name, [question], dev.named(DEV) + test, data, warnings=[*warnings, *own.notes()])


def question_of_file(name: str, description: str, link: str, file: str, *, has_control: bool) -> Question:
    """Return a question of the user's own: one about links, which may have texts without the link."""
    question = link_question(name, description)
    return replace(question, link=link, bars=LINK_BARS if has_control else question.bars, file=file)


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
