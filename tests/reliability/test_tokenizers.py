"""With any tokenizer, each outcome gives a verdict or one clear line: the words of a text may be any tokens."""

from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from antecedent_lab.sources import story_items
from data.stories import generate_split
from data.text import SHIPPED_TEXT, read_documents
from data.tokenizer import END, bpe_tokenizer, character_tokenizer, fast_tokenizer, word_tokenizer
from extras.english.passages import Reader, passages_in, sections, with_two
from extras.english.questions import NEXT_PRONOUN, TESTED, UNKNOWN_TO_MODEL, WHOSE
from extras.english.source import passages_of, whose_passages_of
from extras.own.file import load_question
from extras.own.source import own_source
from extras.page.content import page_content
from probe.opened_model import OpenedModel
from probe.outcome import CannotTestError, Job
from probe.outcomes import OUTCOMES
from probe.questions import STORY_QUESTIONS
from probe.results import NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED, Finding, Head, ProbeResults, Tested, TestedModel
from probe.source import check_items
from probe.study import answer, study
from settings.errors import UserError
from tests.data.small_corpora import CONFIG, llama_tokenizer
from tests.probe.factories import SETTINGS, blank
from tests.program import ROOT
from tests.tiny_models import random_view

transformers = pytest.importorskip("transformers")


@cache
def english():
    return tuple(read_documents([SHIPPED_TEXT]))


@cache
def passages():
    """Return passages to test, and those with two people that the place rule is fitted to."""
    found = passages_in(sections(english()))
    two = with_two(found)
    one = [passage for passage in found if not passage.has_two]
    return one[:200] + two[:400], two


@cache
def stories():
    return generate_split(CONFIG, "dev"), generate_split(CONFIG, "test")


@cache
def training_text(kind):
    return list(english()[:250]) if kind == "english" else [story.text for story in stories()[0]][:2000]


def of_sentencepiece(texts, size, prepends_space):
    """Return a BPE of whole texts, whose tokens cross words."""
    return llama_tokenizer([text[:300] for text in texts], size, prepends_space=prepends_space, crosses_words=True)


def of_words(texts, size, model, before, trainer):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = before
    tokenizer.train_from_iterator(texts, trainer(vocab_size=size, special_tokens=["<unk>", END], show_progress=False))
    return tokenizer


KINDS: dict[str, Any] = {
    "byte-level": bpe_tokenizer,
    "spaces are tokens": lambda texts, size: bpe_tokenizer([text.replace(" ", "\n") for text in texts], size),
    "sentencepiece": lambda texts, size: of_sentencepiece(texts, size, True),
    "sentencepiece, no space before": lambda texts, size: of_sentencepiece(texts, size, False),
    "word pieces": lambda texts, size: of_words(
        texts, size, models.WordPiece(unk_token="<unk>"), pre_tokenizers.BertPreTokenizer(), trainers.WordPieceTrainer
    ),
    "unigram": lambda texts, size: of_words(
        texts, size, models.Unigram(), pre_tokenizers.Metaspace(), trainers.UnigramTrainer
    ),
    "characters": lambda texts, size: character_tokenizer(texts),
    "words": word_tokenizer,
}
SHAPE: dict[str, Any] = {"d_model": 12, "n_head": 2, "context_length": 256}
SIZES = (300, 600, 2000, 8000, 50_000)
VERDICTS = {SUPPORTED, SUGGESTIVE, NOT_ESTABLISHED, UNKNOWN_TO_MODEL}


@cache
def tokenizer_of(kind, size, text, start):
    """Return a tokenizer as it is read from a folder of transformers, whose `start` token may be missing."""
    tokenizer = KINDS[kind](training_text(text), size)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **({start: END} if start else {}))
    return fast_tokenizer(fast, "tokenizer")


def verdicts_of(outcome, reader, model):
    """Return the verdicts, or why a question is not asked, as `antecedent_lab.sources` and `study` make them."""
    passage_reader = Reader(*reader, model.model.context_length)
    if outcome == "attention":
        items, questions = story_items(*stories(), reader), list(STORY_QUESTIONS)
    elif outcome == "own":
        own = own_source(model, load_question(ROOT / "docs/questions/er_sie.jsonl"))
        items, questions = own.items, own.questions
    else:
        items, questions = passages_of(passage_reader, 2, passages()[0], SETTINGS), [NEXT_PRONOUN]
    if outcome == "whose":
        two = passages()[1]
        items += whose_passages_of(passage_reader, two[:700], two, SETTINGS)
        # A random model copies nothing, and so few passages would not be asked: the case is made all the same.
        head = Tested([Head(1, 0)], {}, verdict=SUPPORTED)
        copied = blank(Finding, question=NEXT_PRONOUN.name, unit="head", head=head)
        job = Job(model.model, model.untrained, items, (), SETTINGS, lambda stage, share: None, [copied], [], str)
        if len(items.of(WHOSE.name, TESTED)) < 300:
            return [OUTCOMES["whose"].problem(WHOSE, items)]
        return [answer(case).verdict for case in OUTCOMES["whose"].cases(job, [WHOSE])]

    if items.pairs:
        check_items(model, items)
    documents = [(passage.doc, passage.text) for passage in passages()[0]]
    studied = study(model.model, model.untrained, items, questions, SETTINGS, documents)
    tested = TestedModel("small", 0, None, {})
    facts = {"settings": SETTINGS, "data": {}, "warnings": [], "missing": studied.missing}
    page_content(model, ProbeResults(model=tested, findings=studied.findings, **facts), None, live=False)
    return [finding.verdict for finding in studied.findings] + studied.missing


@pytest.mark.slow
@settings(max_examples=20)
@example(kind="spaces are tokens", size=2000, text="english", start="bos_token", outcome="edge")
@given(
    kind=st.sampled_from(list(KINDS)),
    size=st.sampled_from(SIZES),
    text=st.sampled_from(["english", "stories"]),
    start=st.sampled_from(["bos_token", "eos_token", ""]),
    outcome=st.sampled_from(["attention", "edge", "whose", "own"]),
)
def test_any_tokenizer_gives_a_verdict_or_one_clear_line(kind, size, text, start, outcome):
    try:
        reader = tokenizer_of(kind, size, text, start)
        view = random_view(reader[0].get_vocab_size(), **SHAPE)
        facts = {"name": "small", "source": "small", "model": view, "tokenizer": reader[0], "bos_id": reader[1]}
        facts |= {"untrained": lambda seed: random_view(view.vocab_size, 7 + seed, **SHAPE), "view": None}
        found = verdicts_of(outcome, reader, blank(OpenedModel, departures=(), shape=SHAPE, environment={}, **facts))
    except (UserError, CannotTestError) as problem:
        found = [str(problem)]
    assert found
    for each in found:
        assert each in VERDICTS or (each.isprintable() and len(each) > 20), each
