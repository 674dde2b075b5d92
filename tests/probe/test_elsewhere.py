"""What heads do elsewhere, against whole maps of planted models."""

import pytest
import torch

from data.tokenizer import bpe_tokenizer
from model.observe import TransformerView
from probe.elsewhere import MAX_TOKENS, N_PLACES, STRONG, Running, RunningTexts, elsewhere, in_context, item_texts
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
    return model, elsewhere(model, RunningTexts("these texts", running), about, tokens_per_batch, decode)


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
    assert (found.n_strong, found.n_link, found.texts) == (n_strong, n_link, "these texts")
    assert (found.n_texts, found.n_tokens) == (len(running), sum(len(text.tokens) for text in running))
    assert found.n_queries == len(running) - 1
    assert (n_link > 50) == (kind == "coreference") and n_strong > 50


def test_the_places_are_the_strongest_of_different_pairs_of_words_and_name_the_link():
    running = texts() + texts("gender")
    _, found = seen("coreference", running, finding(Head(0, 0)))
    weights = [place.weight for place in found.places]
    assert len(weights) == N_PLACES and weights == sorted(weights, reverse=True)
    assert len({(place.word, place.on) for place in found.places}) == N_PLACES
    for place in found.places:
        assert f"[{place.on}]" in place.text and place.text.endswith(f"[{place.word}]")
        of = {"It": "number", "They": "number", "She": "gender", "He": "gender"}.get(place.word, "")
        assert place.link == of  # this head finds the antecedent of each, and other words look at no noun so much
    assert {"number", "gender"} <= {place.link for place in found.places}


def test_a_link_of_another_question_is_no_link_and_a_copy_counts_both_entities():
    running = texts() + texts("gender", 1)
    _, found = seen("coreference", running, finding(Head(0, 0)))
    _, other = seen("coreference", running, finding(Head(0, 0), question="gender"))
    _, copied = seen("first", running, finding(Head(0, 0), outcome="edge"))
    _, linked = seen("first", running, finding(Head(0, 0)))
    assert other.n_link == 2 < found.n_link and other.n_strong == found.n_strong
    assert copied.n_link > linked.n_link


def test_heads_without_a_strong_weight_and_texts_without_the_link_have_no_places():
    _, found = seen("uniform", texts(), finding(Head(0, 0)))
    assert found.n_strong == found.n_texts  # the third token of each gives a third to the second
    _, found = seen("uniform", [text._replace(tokens=text.tokens[:2]) for text in texts()], finding(Head(0, 0)))
    assert found is None
    assert seen("previous", [], finding(Head(0, 0)))[1] is None
    assert seen("previous", texts(), finding(Head(0, 0), question="verb"))[1] is None


def test_of_many_texts_some_are_drawn_whose_share_is_that_of_all():
    """With each n-th text the share of a head that looks at the first mention doubles where n is 4: blocks of four."""
    few = texts(n=60)
    many = [text._replace(tokens=(*text.tokens, 3 + i)) for text in few for i in range(12)]
    shares = []
    for running in (few, many):
        _, found = seen("first", running, finding(Head(0, 0)), 4096)
        shares.append(found.n_link / found.n_queries)
    assert found.n_texts < len(many) and 0.9 * MAX_TOKENS < found.n_tokens <= MAX_TOKENS
    assert shares[1] == pytest.approx(shares[0], abs=0.1)


def test_texts_of_items_end_at_the_query_and_leave_out_counterparts_of_passages():
    blocks = made.random_pairs()
    found = item_texts(blocks)
    assert {text.tokens for text in found.texts} == {cell.tokens[: cell.query + 1] for cell in blocks.cells}
    assert any(len(cell.tokens) > cell.query + 1 for cell in blocks.cells)
    assert len({text.tokens for text in found.texts}) == len(found.texts)
    passages = made.passage_items()
    found = item_texts(passages)
    assert {text.tokens for text in found.texts} == {
        pair.cells[0].tokens[: pair.cells[0].query + 1] for pair in passages.pairs
    }


def test_pieces_of_words_and_line_breaks_are_shown_as_the_text_has_them():
    tokenizer = bpe_tokenizer(["Tom shook.\nHe ran"], 257)  # bytes
    tokens = (0, *tokenizer.encode("Tom shook.\nHe").ids)

    def decode(ids):
        return tokenizer.decode(list(ids), skip_special_tokens=False)

    assert in_context(tokens, 8, 5, decode) == ("o", "s", "om [s]ho[o]")
    assert in_context(tokens, 12, 11, decode) == ("H", "", "ok.[↵][H]")
