"""probe/opened_model.py: OpenedModel."""

import pytest

from probe.results import Head
from probe.sentences import TIRED_OR_SOFT, word_attention
from tests.probe.factories import word_model

EXAMPLES = TIRED_OR_SOFT
OPENED = word_model([example.text for example in EXAMPLES])


def test_an_example_has_the_weights_of_its_nouns_and_the_next_words_after_a_last_query() -> None:
    in_the_middle, at_the_end = EXAMPLES[:2]
    measured = OPENED.measure_example(in_the_middle, Head(1, 2))
    text = OPENED.tokenize(in_the_middle.text)
    row = word_attention(OPENED.model, [text])[0][1, 2, text.words.index("it")]
    assert list(measured.weights) == ["cat", "mat"] and measured.next == []
    assert (measured.kind, measured.word, text.words[text.word_of_token[measured.query]]) == ("worked", "it", "it")
    meant, other = ([text.words[text.word_of_token[i]] for i in words] for [words] in (measured.meant, measured.other))
    assert (meant, other) == (["cat"], ["mat"])
    assert measured.weights["cat"] == pytest.approx(row[text.words.index("cat")])
    assert len(OPENED.measure_example(at_the_end, Head(1, 2)).next) == 3
    assert OPENED.encode(at_the_end.text) == (OPENED.bos_id, *OPENED.tokenize(at_the_end.text).tokens[1:])
