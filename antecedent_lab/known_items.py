"""Texts whose antecedents are known, in the tokens of a model: the stories or the user's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from antecedent_lab.opened import check_items
from data.corpus import Corpus, load_stories, load_training_texts
from data.errors import UserError
from data.links import LinkedText, LinkItem, link_items
from data.own_items import OWN, OwnQuestion
from data.stories import GENERATOR_VERSION
from data.stories.leakage import leakage
from probe.config import Holdouts, ProbeConfig
from probe.items import OwnWords, Question
from probe.opened_model import OpenedModel
from probe.results import Leakage, TestedData


@dataclass(frozen=True)
class KnownItems:
    """Sentences with known antecedents in the tokens of a model."""

    dev: list[LinkItem]  # heads are chosen on these
    test: list[LinkItem]
    data: TestedData
    warnings: list[str]


def story_items(opened: OpenedModel, corpus: Corpus, config: ProbeConfig) -> KnownItems:
    """Return the stories that a model is tested on; UserError if an external model cannot read them."""
    dev_stories = load_stories(corpus, "dev")
    test_stories = load_stories(corpus, "test")
    if config.holdouts is Holdouts.all:
        test_stories += load_stories(corpus, "test_others")
    dev = link_items(dev_stories, opened.tokenizer, opened.bos_id)
    test = link_items(test_stories, opened.tokenizer, opened.bos_id)

    # A run must not have been trained on the test stories; an external model must know their words.
    leaked = None
    warnings: list[str] = []
    if opened.is_external:
        links = [link for story in [*dev_stories, *test_stories] for link in story.links]
        warnings = check_items(opened, [*dev, *test], sum(link.payoff is not None for link in links))
    else:
        leaked = Leakage(**leakage(load_training_texts(corpus), test_stories))
    data = TestedData(generator_version=GENERATOR_VERSION, fingerprint=corpus.fingerprint, leakage=leaked)
    return KnownItems(dev, test, data, warnings)


def own_items(opened: OpenedModel, own: OwnQuestion) -> tuple[KnownItems, Question]:
    """Return the texts of a question of the user's own (data/own_items.py); UserError if the model cannot read them."""
    texts = [*own.dev, *own.test]
    for text in texts:
        _check_text(opened, text, own.places[text.text])
    dev, test = (link_items(part, opened.tokenizer, opened.bos_id) for part in (own.dev, own.test))
    warnings = check_items(opened, [*dev, *test], sum(text.links[0].payoff is not None for text in texts))
    if not opened.is_external:
        warnings[0] = "The texts are the user's own: the model may have seen them in training."
    n_answers = sum(bool(text.links[0].answers) for text in texts)
    if 0 < n_answers < len(texts):
        warnings.append(f"{len(texts) - n_answers} of {len(texts)} texts have no answers: the causal tests lack them.")
    if own.n_left_out:
        warnings.append(f"{own.n_left_out} blocks are left out: frame and words are not all in dev, or all in test.")
    if own.n_alone:
        warnings.append(f"{own.n_alone} blocks of two have no counterpart in the other order: left out.")
    if own.n_patterns:
        warnings.append(
            f"In {own.n_patterns} of {len(texts) // 2} pairs the text differs before the query: "
            "a head that knows the position from the sentence pattern alone passes too."
        )
    words = OwnWords(own.file, own.description, own.link, own.guards_off)
    question = Question(own.name, OWN, OWN, (OWN,), own.description, own=words)
    return KnownItems(dev, test, TestedData(fingerprint=_fingerprint_of(texts)), warnings), question


def _check_text(opened: OpenedModel, text: LinkedText, where: str) -> None:
    """Raise UserError with the row if the model cannot read a text, or a word of it has no tokens for itself."""
    n_tokens = len(opened.encode(text.text))
    if n_tokens > opened.model.context_length:
        raise UserError(f"{where}: has {n_tokens} tokens; the model reads {opened.model.context_length}")
    try:
        link_items([text], opened.tokenizer, opened.bos_id)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _fingerprint_of(texts: Sequence[LinkedText]) -> str:
    """Return a hash of texts with their links."""
    return sha256("\n".join(map(repr, texts)).encode()).hexdigest()
