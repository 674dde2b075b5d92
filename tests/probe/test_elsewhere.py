"""What heads do elsewhere, against whole maps of planted models."""

import pytest
import torch

from model.observe import TransformerView
from probe.elsewhere import MAX_TOKENS, N_PLACES, STRONG, Running, elsewhere
from probe.results import Finding, Head, Tested
from tests.probe import factories as made

TOKENIZER = made.story_tokenizer()
PLAIN = Running((0, *TOKENIZER.encode("One sunny day, the cat sat near the dog.").ids))


def texts(question="number", n=40):
    running = []
    for pair in made.story_pairs("test", question).pairs[:n]:
        running += [Running(cell.tokens, question, cell) for cell in pair.cells]
    return [*running, PLAIN]


def finding(*heads, **changes):
    about = {"question": "number", "outcome": "attention", "unit": "head", "head": Tested([*heads], {})}
    return made.blank(Finding, **about | changes)


def decode(tokens):
    return TOKENIZER.decode(list(tokens), skip_special_tokens=False)


def seen(kind, running, about, tokens_per_batch=500):
    model = TransformerView(made.planted(kind, strength=12.0))
    return model, elsewhere(model, running, about, tokens_per_batch, decode)


@pytest.mark.parametrize("kind", ["coreference", "previous", "first"])
def test_the_counts_are_those_of_whole_maps(kind):
    running = texts()
    model, found = seen(kind, running, finding(Head(0, 0)))
    n_strong = n_link = 0
    for text in running:
        (weights,) = model.attention_weights(torch.tensor([text.tokens]))[0, :, 0]
        for query in range(1, len(text.tokens)):
            for key in range(1, query):
                if weights[query, key] >= STRONG:
                    n_strong += 1
                    n_link += text.cell is not None and query == text.cell.query and (key,) in text.cell.meant
    assert (found.n_strong, found.n_link) == (n_strong, n_link)
    assert (found.n_texts, found.n_tokens) == (len(running), sum(len(text.tokens) for text in running))
    assert found.n_queries == len(running) - 1
    assert (n_link > 50) == (kind == "coreference") and n_strong > 50


def test_the_places_are_the_strongest_of_different_pairs_of_words_and_show_their_text():
    _, found = seen("coreference", texts(), finding(Head(0, 0)))
    weights = [place.weight for place in found.places]
    assert len(weights) == N_PLACES and weights == sorted(weights, reverse=True)
    assert len({(place.word, place.on) for place in found.places}) == N_PLACES
    for place in found.places:
        assert f"[{place.on}]" in place.text and place.text.endswith(f"[{place.word}]")
        assert place.is_link == (place.word in ("It", "They")) or place.word in ("It", "They")


def test_a_link_of_another_question_is_no_link_and_a_copy_counts_both_entities():
    running = texts()
    _, found = seen("coreference", running, finding(Head(0, 0)))
    _, other = seen("coreference", running, finding(Head(0, 0), question="gender"))
    _, copied = seen("first", running, finding(Head(0, 0), outcome="edge"))
    _, linked = seen("first", running, finding(Head(0, 0)))
    assert other.n_link == 0 < found.n_link and other.n_strong == found.n_strong
    assert copied.n_link > linked.n_link


def test_heads_without_a_strong_weight_have_no_places():
    _, found = seen("uniform", texts(), finding(Head(0, 0)))
    assert found.n_strong == found.n_texts  # the third token of each gives a third to the second
    _, found = seen("uniform", [Running(text.tokens[:2]) for text in texts()], finding(Head(0, 0)))
    assert found is None
    assert seen("previous", [], finding(Head(0, 0)))[1] is None


def test_of_many_texts_some_are_left_out_at_equal_distances():
    many = [Running((*text.tokens, 3 + i), *text[1:]) for i in range(60) for text in texts()]
    _, found = seen("previous", many, finding(Head(0, 0)), 4096)
    assert len(many) > found.n_texts and 0.5 * MAX_TOKENS < found.n_tokens <= MAX_TOKENS
