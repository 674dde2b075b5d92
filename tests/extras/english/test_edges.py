"""Questions by edges: planted heads are found, and nothing without one."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from data.pairs import Items
from extras.compare.difference import difference
from extras.english import edges
from extras.english.edges import Half, candidates_of
from extras.english.questions import NEXT_PRONOUN, REPLACED, TESTED, UNKNOWN_TO_MODEL, WHOSE
from model.observe import TransformerView
from probe.questions import DEV
from probe.results import NOT_ESTABLISHED, SUPPORTED, Head
from probe.study import study
from settings.errors import UserError
from tests.probe.factories import SETTINGS, copying_model, documents, passage_items, passages
from tests.tiny_models import random_view, untrained

N_WORDS = copying_model([1.0]).vocab_size


def studied(model, items, *questions):
    """Return the findings, and the sentences why there are no others."""
    result = study(model, lambda seed: model, items, [NEXT_PRONOUN, *questions], SETTINGS, documents())
    return [*result.findings, *result.missing]


def finding_of(model):
    [finding] = studied(model, passage_items())
    return finding


@cache
def copying(*gains):
    return finding_of(copying_model(gains))


def test_the_planted_head_is_supported_and_one_that_writes_the_other_gender_is_not():
    finding = copying(0.0, 3.0, 0.0)
    assert (finding.place, finding.unit, finding.verdict, finding.level) == (Head(0, 1), "head", SUPPORTED, "E3")
    head = finding.head
    assert head.value("p") < 0.01
    assert head.value("swap") == pytest.approx(1.0, abs=1e-3)
    assert head.value("flips") > 0.9 and head.value("follows") > 0.9
    assert finding.set is None and [place for place, *_ in finding.curve] == [Head(0, 1)]
    # The other heads look at the same persons, but write nothing
    [effects] = finding.grids["edge_effect"]
    assert effects[1] > 1 and max(abs(effects[0]), abs(effects[2])) < 1e-6
    finding = copying(0.0, -3.0, 0.0)
    assert (finding.verdict, finding.level) == (UNKNOWN_TO_MODEL, "E0") and finding.head.value("follows") < 0.1


def test_heads_that_share_the_work_are_a_set_and_judged_as_one_if_they_must():
    finding = copying(1.5, 0.0, 1.5)
    assert finding.set is not None and set(finding.set.heads) == {Head(0, 0), Head(0, 2)}
    assert finding.set.value("swap") == pytest.approx(1.0, abs=1e-3)
    assert [head for head, *_ in finding.curve] == finding.set.heads
    assert finding.unit == "head"  # half of the work is enough for the verdict of one

    # No single head is enough.
    finding = copying(0.6, 0.6, 0.6, 0.6, 0.6, 0.6)
    assert finding.head.verdict != SUPPORTED and finding.head.value("swap") < 0.2
    assert finding.set is not None and len(finding.set.heads) == 5
    assert (finding.unit, finding.verdict, finding.judged) == ("set", SUPPORTED, finding.set)


def test_the_shown_passages_have_a_share_near_the_median_and_both_pronouns():
    shown = copying(0.0, 3.0, 0.0).examples_of("typical")
    assert len(shown) == edges.N_EXAMPLES
    texts = {passage.text.strip() for passage in passages()}
    for example in shown:
        assert example.text in texts and len(example.weights) == 2
        (she, p_she), (he, p_he) = example.next
        (_, she_exchanged), (_, he_exchanged) = example.exchanged
        assert (she.lower(), he.lower()) == ("she", "he")
        assert (p_she > p_he) != (she_exchanged > he_exchanged)


@pytest.mark.parametrize("seed", range(6))
def test_heads_that_copy_something_else_than_gender_or_at_random_are_not_supported(seed):
    view = random_view(N_WORDS, seed - 3, context_length=64)
    finding = finding_of(copying_model((2.0, 1.0), seed, knows_gender=False) if seed < 4 else view)
    assert finding.verdict in (UNKNOWN_TO_MODEL, NOT_ESTABLISHED) and 0.1 < finding.head.value("follows") < 0.9


def test_a_model_with_the_same_margin_in_every_text_is_not_known():
    finding = finding_of(TransformerView(untrained(N_WORDS, context_length=64)))
    assert (finding.verdict, finding.set, finding.curve) == (UNKNOWN_TO_MODEL, None, [])
    assert finding.head.value("follows") == 0.5 and np.isnan(finding.head.value("swap"))


def test_of_many_heads_those_with_the_largest_direct_effects_are_edited(monkeypatch):
    gains = [0.1 + 0.01 * i for i in range(edges.EDIT_ALL + 1)]
    gains[9] = 8.0
    edited = {Head(0, i) for i in (9, *range(len(gains) - edges.MAX_EDITED + 1, len(gains)))}
    finding = copying(*gains)
    assert (finding.place, finding.verdict) == (Head(0, 9), SUPPORTED)
    assert {Head(*place) for place in np.argwhere(np.isfinite(finding.grids["p"])).tolist()} == edited
    [note] = finding.notes
    assert note.startswith(f"of {len(gains)} heads only {edges.MAX_EDITED} were edited")
    assert copying(0.0, 3.0, 0.0).notes == []
    model = copying_model(gains)
    dev = passage_items().of(NEXT_PRONOUN.name, DEV)
    assert set(candidates_of(model, Half(model, dev, 4096))) == edited
    monkeypatch.setattr(model, "final_norm_pullback", lambda *_: None)
    unknown = "the direct effects of the heads are not known for this kind of model"
    assert studied(model, passage_items()) == [unknown]
    with pytest.raises(UserError, match=unknown):
        difference(model, model, passage_items(), NEXT_PRONOUN, SETTINGS)


def items_with_whose(n_copies):
    """Return passages for both questions; in the second their place and form are random, and words the same."""
    rng = np.random.default_rng(0)
    items = passage_items()
    tested = []
    for pair in [pair for pair in items.pairs if pair.has_two] * n_copies:
        alike = {"place": rng.normal(), "form": tuple(rng.normal(size=3).tolist())}
        tested.append(replace(pair, question=WHOSE.name, part=TESTED, **alike))
    return items + Items(tested) + Items(tested * 3).named(part=REPLACED)


def test_whose_is_asked_of_a_supported_head_with_enough_passages_and_else_says_why():
    [copies, why_not] = studied(copying_model((0.0, -3.0)), items_with_whose(12), WHOSE)
    assert copies.question == NEXT_PRONOUN.name
    assert why_not == f"{WHOSE.name}: asked of a head that is supported for {NEXT_PRONOUN.name}"
    model = copying_model((0.0, 3.0))
    few = items_with_whose(11)
    n = len(few.of(WHOSE.name, TESTED))
    assert studied(model, few, WHOSE)[1:] == [f"{WHOSE.name}: {n} passages with a woman and a man (needed: 700)"]

    # The author is found by nothing here, with the true words and with others.
    copies, whose = studied(model, items_with_whose(12), WHOSE)
    assert (copies.verdict, whose.verdict, whose.level) == (SUPPORTED, NOT_ESTABLISHED, "E1")
    assert whose.n >= 700 and whose.place == copies.place
    assert whose.head.value("form") == pytest.approx(whose.head.value("beyond_place"))
    assert min(whose.head.value(name) for name in ("p_beyond_place", "p_form", "p_words")) > 0.01


def test_too_few_passages_documents_or_entities_are_a_sentence_with_the_counts():
    items = passage_items()
    problem = edges.EdgeOutcome().problem
    assert problem(NEXT_PRONOUN, items) == ""
    two = items.where(lambda pair: pair.has_two)
    few = problem(NEXT_PRONOUN, items.where(lambda pair: not pair.has_two) + two.take(range(3)))
    assert few.startswith(f"{NEXT_PRONOUN.name}: 3 passages with a woman and a man (needed: 40); ")
    for number, missing in ((0, "1 documents with one person in one half"), (1, "1 different entities of one class")):
        pairs = []
        for pair in items.pairs:
            clusters = [*pair.clusters]
            clusters[number] = "same"
            pairs.append(replace(pair, clusters=tuple(clusters)))
        assert missing in problem(NEXT_PRONOUN, Items(pairs))
