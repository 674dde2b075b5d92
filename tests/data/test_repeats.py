from dataclasses import replace

import numpy as np
import pytest

from data.corpus import load_corpus
from data.loader import StorySplit, training_batches
from data.repeats import N_WORDS, WORDS, repeated
from settings.data import RepeatsConfig
from settings.errors import UserError

CONFIG = RepeatsConfig(source="repeats", seed=0, n_documents=200, fewest_words=12, most_words=29, same_order=True)
NEVER_AGAIN = replace(CONFIG, fewest_words=N_WORDS, most_words=N_WORDS)


def documents(config):
    return [text.split() for split in repeated(config) for text in split]


def test_words_come_again_in_the_same_order_from_any_place_of_it():
    found = documents(CONFIG)
    sizes = {len(set(words)) for words in found}
    assert (min(sizes), max(sizes)) == (12, 29)
    for words in found:
        n_distinct = len(set(words))
        assert len(words) == N_WORDS and set(words) <= set(WORDS)
        assert words[n_distinct:] == words[:-n_distinct]


def test_without_an_order_the_rounds_have_the_same_words_and_another_order():
    n_same = 0
    for words in documents(replace(CONFIG, same_order=False, fewest_words=20, most_words=20)):
        assert len(set(words)) == 20
        n_same += words[20:] == words[:-20]
    assert n_same == 0


def test_with_as_many_words_as_a_document_none_comes_again():
    assert all(len(set(words)) == N_WORDS for words in documents(NEVER_AGAIN))


def test_the_same_settings_give_the_same_documents_and_other_seeds_others(tmp_path):
    assert repeated(CONFIG) == repeated(CONFIG) != repeated(replace(CONFIG, seed=1))
    train, validation = repeated(CONFIG)
    assert (len(train), len(validation)) == (196, 4) and not {*train} & {*validation}
    first, again, other = (load_corpus(config, tmp_path) for config in (CONFIG, CONFIG, replace(CONFIG, seed=1)))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_model_reads_each_document_from_its_start(tmp_path):
    """In crops of a stream heads that look at the previous word failed at some places (docs/log.md)."""
    corpus = load_corpus(CONFIG, tmp_path)
    assert isinstance(corpus.train, StorySplit) and corpus.train.floor is None
    batch = training_batches(corpus.train, tokens_per_batch=640, context_length=64, seed=0).at(0)
    end = corpus.tokenizer.token_to_id("<|endoftext|>")
    assert (batch.tokens[:, 0] == end).all() and (batch.tokens[:, 1 : N_WORDS + 1] != end).all()
    text = corpus.tokenizer.decode(np.asarray(corpus.train.tokens[: N_WORDS + 1]))
    assert text == repeated(CONFIG)[0][0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"fewest_words": 30}, "data.fewest_words=30: more than data.most_words=29"),
        ({"fewest_words": 1}, "data.fewest_words=1: must be 2 or more"),
        ({"most_words": 1000}, "data.most_words=1000: must be at least 2 and at most 128"),
    ],
)
def test_settings_that_fit_no_document_are_refused(changes, problem):
    with pytest.raises(UserError) as error:
        replace(CONFIG, **changes)
    assert str(error.value) == problem
